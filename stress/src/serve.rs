//! How a process that reduces carries out orders.

use std::io::{BufRead, Write};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use twox_hash::XxHash3_128;

use crate::content;
use crate::usage;
use crate::words::{Answer, Done, Go, Join, Order, Used, Work};

/// What is measured.
pub(crate) trait Reducer {
    /// Finds the others.
    fn join(&mut self, join: &Join) -> Result<(), String>;

    /// Sums up all tensors, beside one another if that can be. Bytes sent.
    fn reduce(&mut self, tensors: &mut [Tensor]) -> Result<u64, String>;
}

/// One tensor of a member.
#[derive(Debug, Default)]
pub(crate) struct Tensor {
    /// The contribution, and, in place, the result.
    pub(crate) own: Vec<f32>,
    /// Room for the result, unless it goes in place.
    pub(crate) result: Option<Vec<f32>>,
}

/// Carries out orders until there are no more: then the process ends, whatever it is at.
pub(crate) fn serve(mut reducer: impl Reducer) -> Result<(), String> {
    let orders = orders();
    let mut buffers = Buffers::default();
    while let Ok(order) = orders.recv() {
        let answer = order.and_then(|order| match order {
            Order::Join(join) => reducer.join(&join).map(|()| Answer::Joined),
            Order::Prepare(work) => {
                buffers = Buffers::new(work)?;
                Ok(Answer::Ready)
            }
            Order::Fill => {
                buffers.fill();
                Ok(Answer::Ready)
            }
            Order::Go(go) => buffers.go(go, &mut reducer).map(Answer::Done),
            Order::Usage => Ok(Answer::Used(buffers.used())),
        });
        say(&answer.unwrap_or_else(|why| Answer::Failed { why }));
    }
    Ok(())
}

/// Says something to whoever drives this process.
pub(crate) fn say(answer: &Answer) {
    let line = serde_json::to_string(answer).unwrap_or_default();
    let mut out = std::io::stdout().lock();
    // Whoever does not listen any more has closed the other end, too, which ends this process.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Orders as they come. A thread reads them, so that their end is noticed in the middle of work.
pub(crate) fn orders() -> Receiver<Result<Order, String>> {
    let (sender, receiver) = sync_channel(1);
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let order = serde_json::from_str(&line);
            let _ = sender.send(order.map_err(|e| format!("{line:?} is no order: {e}")));
        }
        std::process::exit(0);
    });
    receiver
}

/// What this member contributes and gets.
#[derive(Default)]
struct Buffers {
    work: Option<Work>,
    tensors: Vec<Tensor>,
    pattern: Vec<f32>,
    expected: Vec<f64>,
    /// Bytes of memory before the first repetition.
    before: Option<u64>,
}

impl Buffers {
    fn new(work: Work) -> Result<Self, String> {
        let count = usize::try_from(work.bytes / 4).map_err(|e| e.to_string())?;
        let tensor = || Tensor {
            own: vec![0.0; count],
            // Pages that have been written to are there before the first repetition.
            result: (!work.in_place).then(|| vec![1.0; count]),
        };
        let mut buffers = Self {
            work: Some(work),
            tensors: (0..work.tags).map(|_| tensor()).collect(),
            pattern: content::pattern(work.identity),
            expected: content::sum(work.members),
            before: None,
        };
        buffers.fill();
        buffers.before = usage::memory();
        Ok(buffers)
    }

    fn fill(&mut self) {
        for tensor in &mut self.tensors {
            content::fill(&mut tensor.own, &self.pattern);
        }
    }

    fn used(&self) -> Used {
        let over = |now: u64| Some(now.saturating_sub(self.before?));
        Used {
            cpu: usage::cpu(),
            memory: usage::memory().and_then(over),
        }
    }

    fn go(&mut self, go: Go, reducer: &mut impl Reducer) -> Result<Done, String> {
        let work = self.work.ok_or("nothing has been prepared")?;
        std::thread::sleep(Duration::from_millis(go.late));
        usage::reset_peak();
        let mut each = Vec::new();
        let mut sent = 0;
        let (cpu, begin) = (usage::cpu(), Instant::now());
        for _ in 0..go.times {
            if go.each {
                self.fill();
            }
            let own = Instant::now();
            sent += reducer.reduce(&mut self.tensors)?;
            if go.each {
                each.push(own.elapsed().as_secs_f64());
            }
        }
        let (seconds, cpu) = (begin.elapsed().as_secs_f64(), usage::cpu() - cpu);
        let peak = usage::peak();
        // In place, each reduction but the first sums up what are sums already.
        let again = if work.in_place && !go.each {
            go.times.saturating_sub(1)
        } else {
            0
        };
        let factor = f64::from(work.members).powi(i32::try_from(again).unwrap_or(0));
        let checked = go.check.then(|| self.check(&work, factor));
        Ok(Done {
            seconds,
            cpu,
            each,
            peak: peak.and_then(|peak| Some(peak.saturating_sub(self.before?))),
            sent,
            wrong: checked.as_ref().and_then(|(wrong, _)| wrong.clone()),
            digest: checked.map_or(0, |(_, digest)| digest),
        })
    }

    /// What is wrong with the results, if anything is, and their digest.
    fn check(&self, work: &Work, factor: f64) -> (Option<String>, u64) {
        let mut wrong = None;
        let mut digest = 0u64;
        for (tag, tensor) in self.tensors.iter().enumerate() {
            let result = tensor.result.as_deref().unwrap_or(&tensor.own);
            let error = content::error(result, &self.expected, factor);
            if error > work.tolerance {
                wrong = Some(format!("the result of tag {tag} is off by {error:.1e}"));
            }
            if tensor.result.is_some() {
                let own: Vec<f64> = self.pattern.iter().copied().map(f64::from).collect();
                if content::error(&tensor.own, &own, 1.0) > 0.0 {
                    wrong = Some(format!("the contribution of tag {tag} was changed"));
                }
            }
            let own = XxHash3_128::oneshot(bytemuck::cast_slice(result));
            digest = digest.rotate_left(7) ^ own as u64;
        }
        (wrong, digest)
    }
}
