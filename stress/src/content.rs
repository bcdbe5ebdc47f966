//! What is reduced, and whether the result is right.

/// Elements of one member's pattern. A prime, so that no piece that is in a wrong place looks right
/// because it is a whole number of patterns away.
const PATTERN: usize = 65_521;

/// What member `identity` contributes: numbers around zero, most of them small.
pub(crate) fn pattern(identity: u32) -> Vec<f32> {
    let mut state = u64::from(identity).wrapping_mul(0xA076_1D64_78BD_642F) ^ 0x5851_F42D;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005);
        state = state.wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    };
    (0..PATTERN)
        .map(|_| uniform() + uniform() + uniform())
        .collect()
}

/// The sum of what `members` contribute.
pub(crate) fn sum(members: u32) -> Vec<f64> {
    let mut sum = vec![0.0; PATTERN];
    for identity in 0..members {
        let own = pattern(identity);
        sum.iter_mut()
            .zip(own)
            .for_each(|(s, x)| *s += f64::from(x));
    }
    sum
}

/// Repeats the pattern over the buffer.
pub(crate) fn fill(buffer: &mut [f32], pattern: &[f32]) {
    for piece in buffer.chunks_mut(pattern.len().max(1)) {
        let (same, _) = pattern.split_at(piece.len());
        piece.copy_from_slice(same);
    }
}

/// How far `result` is from `factor` times the expected pattern at most, as a part of the largest
/// number expected. Infinite if it is no number.
pub(crate) fn error(result: &[f32], expected: &[f64], factor: f64) -> f64 {
    let largest = |worst: f64, x: f64| if x <= worst { worst } else { x };
    let range = expected.iter().map(|x| x.abs()).fold(0.0, largest);
    let worst = result
        .chunks(expected.len().max(1))
        .flat_map(|piece| piece.iter().zip(expected))
        .map(|(x, want)| (f64::from(*x) / factor - want).abs())
        .fold(0.0, |worst, x| {
            if x.is_finite() {
                largest(worst, x)
            } else {
                f64::INFINITY
            }
        });
    if range > 0.0 { worst / range } else { worst }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_right_sum_is_recognised_and_a_wrong_one_is_not() {
        let expected = sum(3);
        let mut result = vec![0.0; 2 * PATTERN + 7];
        for identity in 0..3 {
            let mut own = vec![0.0; result.len()];
            fill(&mut own, &pattern(identity));
            result.iter_mut().zip(own).for_each(|(r, x)| *r += x);
        }
        assert!(error(&result, &expected, 1.0) < 1e-6);
        assert!(error(&result, &expected, 2.0) > 0.1);
        let mut shifted = result.clone();
        shifted.rotate_left(1024);
        assert!(error(&shifted, &expected, 1.0) > 0.1);
        for wrong in [f32::NAN, f32::INFINITY, result[9] + 1.0] {
            let mut result = result.clone();
            result[9] = wrong;
            assert!(error(&result, &expected, 1.0) > 0.05);
        }
    }

    #[test]
    fn members_contribute_different_things() {
        assert_ne!(pattern(0)[..10], pattern(1)[..10]);
        assert!(pattern(2).iter().all(|x| x.abs() <= 3.0));
    }
}
