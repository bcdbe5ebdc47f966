//! What this process has used.

use std::fs;

use cpu_time::ProcessTime;

/// Seconds of all cores since the process began, in the kernel's work for it as well as its own.
pub(crate) fn cpu() -> f64 {
    ProcessTime::now().as_duration().as_secs_f64()
}

/// Bytes of memory at this moment; none where the system does not say as Linux does.
pub(crate) fn memory() -> Option<u64> {
    status("VmRSS:")
}

/// Bytes of memory at the most since [`reset_peak`].
pub(crate) fn peak() -> Option<u64> {
    status("VmHWM:")
}

/// Begins a new peak. Where that is not allowed, the peak is that of the process.
pub(crate) fn reset_peak() {
    let _ = fs::write("/proc/self/clear_refs", "5");
}

/// Seconds in which the cores of this machine have not been idle; none where the system does not say.
pub(crate) fn busy() -> Option<f64> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    let numbers = text.lines().next()?.split_whitespace().skip(1);
    let ticks: Vec<u64> = numbers.map_while(|n| n.parse().ok()).collect();
    // User, nice, system, then interrupts; between them idle and waiting for disks.
    let used = [0, 1, 2, 5, 6, 7].map(|at| ticks.get(at).copied().unwrap_or(0));
    Some(used.iter().sum::<u64>() as f64 / TICKS)
}

/// The system's default for congestion control; none where it does not say.
pub(crate) fn congestion_control() -> Option<String> {
    let text = fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").ok()?;
    Some(text.trim().to_owned())
}

fn status(key: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

/// Ticks a second in what Linux tells programs.
const TICKS: f64 = 100.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_takes_time() {
        let before = cpu();
        let mut x = 1u64;
        while cpu() - before < 0.01 {
            x = std::hint::black_box(x.wrapping_mul(3));
        }
        assert!(x % 2 == 1);
    }

    #[test]
    fn memory_is_at_most_its_peak() {
        let (Some(now), Some(peak)) = (memory(), peak()) else {
            println!("left out: the system does not say");
            return;
        };
        assert!(now > 0 && now <= peak);
    }
}
