//! Contributions whose sum tells who took part.

use std::fmt;
use std::hash::Hasher;
use std::str::FromStr;

/// One all-reduce that all members of a group shall make.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Job {
    /// Tag of the operation.
    pub tag: u64,
    /// Elements (f32).
    pub count: usize,
    /// Whether the result takes the place of the contribution.
    pub in_place: bool,
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if self.in_place { "in" } else { "out" };
        write!(f, "{}:{}:{place}", self.tag, self.count)
    }
}

impl FromStr for Job {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} is no job");
        let parts: Vec<&str> = text.split(':').collect();
        let [tag, count, place] = parts[..] else {
            return Err(bad());
        };
        Ok(Self {
            tag: tag.parse().map_err(|_| bad())?,
            count: count.parse().map_err(|_| bad())?,
            in_place: place == "in",
        })
    }
}

/// What one process contributes to one operation.
///
/// Element `j` of process `i` is `2^i` times a value that all processes share, so that the quotient
/// of sum and shared value is the set of those who took part. With an even tag the shared values
/// are 1 to 251, and f32 holds the sum of any set of up to eight processes exactly; with an odd tag
/// they are tenths of that, and the sum's last bits depend on the order of summation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Contribution {
    /// Number of the process: 0 to 7.
    pub identity: u32,
    /// Step of the test; the values of two steps differ.
    pub step: u64,
    /// Which operation.
    pub job: Job,
}

impl Contribution {
    /// The tensor.
    pub fn tensor(&self) -> Vec<f32> {
        let mine = (1u32 << self.identity) as f32;
        (0..self.job.count).map(|j| self.shared(j) * mine).collect()
    }

    /// Whether `tensor` is, byte for byte, what was contributed.
    pub fn is_unharmed(&self, tensor: &[f32]) -> bool {
        let mine = (1u32 << self.identity) as f32;
        tensor.len() == self.job.count
            && tensor
                .iter()
                .enumerate()
                .all(|(j, x)| x.to_bits() == (self.shared(j) * mine).to_bits())
    }

    /// The set of processes (bit `i` is process `i`) whose contributions `sum` is made of, or the
    /// first element that is not the sum over the same set as all before.
    pub fn contributors(&self, sum: &[f32]) -> Result<u32, String> {
        let Some(first) = sum.first() else {
            return Err("an empty result".into());
        };
        let exact = self.job.tag.is_multiple_of(2);
        let set = first / self.shared(0);
        let set = if exact { set } else { set.round() };
        for (j, x) in sum.iter().enumerate() {
            let expected = set * self.shared(j);
            let right = x.to_bits() == expected.to_bits()
                || !exact && (x - expected).abs() <= expected * 1e-6;
            if !right {
                return Err(format!("element {j} is {x}, not {expected} (set {set})"));
            }
        }
        if set.fract() != 0.0 || !(1.0..256.0).contains(&set) {
            return Err(format!("{set} is no set of contributors"));
        }
        Ok(set as u32)
    }

    fn shared(&self, j: usize) -> f32 {
        let salt = self.step.wrapping_mul(13).wrapping_add(self.job.tag * 31);
        let value = ((j as u64).wrapping_mul(7).wrapping_add(salt) % 251 + 1) as f32;
        if self.job.tag.is_multiple_of(2) {
            value
        } else {
            value * 0.1
        }
    }
}

/// Short form of a tensor's bits, equal in all processes of one build.
pub fn checksum(tensor: &[f32]) -> u64 {
    let mut hasher = std::collections::hash_map::DefaultHasher::new();
    for x in tensor {
        hasher.write_u32(x.to_bits());
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(contributions: &[Contribution]) -> Vec<f32> {
        let mut sum = vec![0.0; contributions[0].job.count];
        for contribution in contributions {
            for (total, x) in sum.iter_mut().zip(contribution.tensor()) {
                *total += x;
            }
        }
        sum
    }

    #[test]
    fn a_sum_tells_who_took_part() {
        for tag in [2, 3] {
            let job = format!("{tag}:1000:in").parse().unwrap();
            let of = |identity| Contribution {
                identity,
                step: 5,
                job,
            };
            let mut total = sum(&[of(0), of(2), of(7)]);
            assert_eq!(of(1).contributors(&total), Ok(0b1000_0101));
            total[999] += 1.0;
            assert!(of(1).contributors(&total).is_err());
            assert!(of(1).is_unharmed(&of(1).tensor()));
            assert!(!of(1).is_unharmed(&of(2).tensor()));
        }
    }

    #[test]
    fn a_job_survives_being_written() {
        let job: Job = "3:1000:out".parse().unwrap();
        assert_eq!(job.to_string().parse(), Ok(job));
    }
}
