//! What repetitions come to.

use serde::Serialize;

use crate::processes::Repetition;

/// Figures of many repetitions of one operation.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub(super) struct Figures {
    /// Median of the seconds that one operation takes its slowest member.
    pub(super) median: f64,
    /// The fastest.
    pub(super) fastest: f64,
    /// The slowest.
    pub(super) slowest: f64,
    /// Seconds of cores that one operation takes all members together, the median.
    pub(super) members_cpu: f64,
    /// Seconds of cores that it takes the master, on average.
    pub(super) master_cpu: f64,
    /// Bytes of memory at the most over the buffers, at one member.
    pub(super) peak: Option<u64>,
    /// The same when nothing has been done for a while.
    pub(super) held: Option<u64>,
    /// Bytes of data that a member sends, on average.
    pub(super) sent: f64,
    /// Cores that were busy with something else, the median; none where the system does not say.
    pub(super) others: Option<f64>,
    /// Seconds of each repetition.
    pub(super) seconds: Vec<f64>,
}

impl Figures {
    /// Seconds of cores of one operation, the master's included.
    pub(super) fn cpu(&self) -> f64 {
        self.members_cpu + self.master_cpu
    }
}

/// Repetitions as they come.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Collected {
    seconds: Vec<f64>,
    members_cpu: Vec<f64>,
    master_cpu: Vec<f64>,
    sent: Vec<f64>,
    others: Vec<f64>,
    peak: Option<u64>,
    held: Option<u64>,
}

impl Collected {
    /// Adds a repetition of `times` operations. Only memory counts of one that warms up.
    pub(super) fn add(&mut self, repetition: &Repetition, times: u32, warms_up: bool) {
        let done = &repetition.done;
        let peak = done.iter().filter_map(|d| d.peak).max();
        self.peak = self.peak.max(peak);
        if warms_up {
            return;
        }
        let times = f64::from(times);
        let slowest = done.iter().map(|d| d.seconds).fold(0.0, f64::max);
        self.seconds.push(slowest / times);
        let cpu: f64 = done.iter().map(|d| d.cpu).sum();
        self.members_cpu.push(cpu / times);
        self.master_cpu.push(repetition.master_cpu / times);
        let sent: u64 = done.iter().map(|d| d.sent).sum();
        self.sent
            .push(sent as f64 / times / done.len().max(1) as f64);
        self.others.extend(repetition.others);
    }

    /// Notes what is held when nothing has been done for a while.
    pub(super) fn holds(&mut self, bytes: Option<u64>) {
        self.held = self.held.max(bytes);
    }

    /// What it all comes to; nothing without repetitions.
    pub(super) fn figures(self) -> Option<Figures> {
        Some(Figures {
            median: median(&self.seconds)?,
            fastest: self.seconds.iter().copied().fold(f64::INFINITY, f64::min),
            slowest: self.seconds.iter().copied().fold(0.0, f64::max),
            members_cpu: median(&self.members_cpu)?,
            master_cpu: average(&self.master_cpu),
            peak: self.peak,
            held: self.held,
            sent: average(&self.sent),
            others: median(&self.others),
            seconds: self.seconds,
        })
    }
}

/// The middle, or the mean of the two in the middle.
pub(super) fn median(all: &[f64]) -> Option<f64> {
    let mut sorted = all.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = sorted.get(sorted.len() / 2)?;
    let lower = sorted.get((sorted.len() - 1) / 2)?;
    Some((upper + lower) / 2.0)
}

/// What `part` (between zero and one) of all do not exceed.
pub(super) fn quantile(all: &[f64], part: f64) -> Option<f64> {
    let mut sorted = all.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = (sorted.len() as f64 * part) as usize;
    sorted.get(at.min(sorted.len().saturating_sub(1))).copied()
}

fn average(all: &[f64]) -> f64 {
    all.iter().sum::<f64>() / all.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::Done;

    #[test]
    fn medians_and_quantiles_are_those_of_the_sorted() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        let hundred: Vec<f64> = (0..100).rev().map(f64::from).collect();
        assert_eq!(quantile(&hundred, 0.99), Some(99.0));
        assert_eq!(quantile(&hundred, 0.5), Some(50.0));
        assert_eq!(quantile(&[7.0], 0.99), Some(7.0));
        assert_eq!(quantile(&[], 0.5), None);
    }

    #[test]
    fn the_slowest_member_counts_and_all_of_the_time_of_cores() {
        let done = |seconds, peak| Done {
            seconds,
            cpu: 1.0,
            each: vec![],
            peak: Some(peak),
            sent: 100,
            wrong: None,
            digest: 0,
        };
        let repetition = |seconds| Repetition {
            done: vec![done(seconds, 5), done(1.0, 3)],
            master_cpu: 0.5,
            others: None,
        };
        let mut collected = Collected::default();
        collected.add(&repetition(99.0), 1, true);
        for seconds in [4.0, 2.0, 6.0] {
            collected.add(&repetition(seconds), 2, false);
        }
        let figures = collected.figures().unwrap();
        let seconds = (figures.median, figures.fastest, figures.slowest);
        assert_eq!(seconds, (2.0, 1.0, 3.0));
        let cpu = (figures.members_cpu, figures.master_cpu, figures.cpu());
        assert_eq!(cpu, (1.0, 0.25, 1.25));
        assert_eq!((figures.peak, figures.sent), (Some(5), 50.0));
        assert_eq!(Collected::default().figures(), None);
    }
}
