//! Processes that are this program again, driven over their standard input and output.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::words::{Answer, Done, Go, Join, Order, Used, Work};

/// Why there is no figure.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Trouble {
    /// Somebody did not answer in time.
    Hang(String),
    /// Somebody said that it failed, or died.
    Failed(String),
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hang(what) => write!(f, "no end: {what}"),
            Self::Failed(what) => write!(f, "failed: {what}"),
        }
    }
}

/// Where processes run and how they are told to begin.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// What to put before this program's own name to start it where member number `{}` is to be.
    /// Empty: beside this process.
    pub(crate) launch: Vec<String>,
    /// Address at which masters and processes of the bare loop listen there.
    pub(crate) host: String,
    /// What they log.
    pub(crate) log_level: Option<String>,
}

impl Place {
    /// Address to listen at for process `number`.
    fn listen(&self, number: u32) -> String {
        format!("{}:0", self.host.replace("{}", &number.to_string()))
    }

    fn command(&self, number: u32, arguments: &[String]) -> Result<Command, Trouble> {
        let own = std::env::current_exe();
        let own = own.map_err(|e| Trouble::Failed(format!("own name: {e}")))?;
        let mut words = self
            .launch
            .iter()
            .map(|word| word.replace("{}", &number.to_string()));
        let mut command = match words.next() {
            Some(first) => {
                let mut command = Command::new(first);
                command.args(words).arg(own);
                command
            }
            None => Command::new(own),
        };
        command.args(arguments);
        if let Some(level) = &self.log_level {
            command.args(["--log-level", level]);
        }
        Ok(command)
    }
}

/// One process. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    child: Child,
    orders: ChildStdin,
    answers: Receiver<Result<Answer, String>>,
}

impl Process {
    /// Starts this program with these arguments as process `number`.
    pub(crate) fn start(place: &Place, number: u32, arguments: &[String]) -> Result<Self, Trouble> {
        let name = format!("{} {number}", arguments.first().map_or("", String::as_str));
        let failed = |what: &str| Trouble::Failed(format!("{name}: {what}"));
        let mut command = place.command(number, arguments)?;
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| failed(&format!("does not start: {e}")))?;
        let (Some(orders), Some(said)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(failed("has no pipes"));
        };
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(said).lines().map_while(Result::ok) {
                let answer = serde_json::from_str(&line);
                let answer = answer.map_err(|e| format!("said {line:?}: {e}"));
                if sender.send(answer).is_err() {
                    return;
                }
            }
        });
        Ok(Self {
            name,
            child,
            orders,
            answers,
        })
    }

    /// Gives an order. What the process does not live to read is lost: its answer will be missed.
    pub(crate) fn order(&mut self, order: &Order) {
        let line = serde_json::to_string(order).unwrap_or_default();
        let _ = writeln!(self.orders, "{line}").and_then(|()| self.orders.flush());
    }

    /// The answer, which is to come by then.
    pub(crate) fn hear(&self, deadline: Instant) -> Result<Answer, Trouble> {
        let left = deadline.saturating_duration_since(Instant::now());
        match self.answers.recv_timeout(left) {
            Ok(Ok(Answer::Failed { why })) | Ok(Err(why)) => {
                Err(Trouble::Failed(format!("{}: {why}", self.name)))
            }
            Ok(Ok(answer)) => Ok(answer),
            Err(RecvTimeoutError::Timeout) => Err(Trouble::Hang(self.name.clone())),
            Err(RecvTimeoutError::Disconnected) => {
                Err(Trouble::Failed(format!("{} died", self.name)))
            }
        }
    }

    fn address(&self) -> Result<SocketAddr, Trouble> {
        match self.hear(Instant::now() + START)? {
            Answer::Listens { address } => Ok(address),
            other => Err(unexpected(&self.name, &other)),
        }
    }

    /// What it has used since it began.
    pub(crate) fn used(&mut self) -> Result<Used, Trouble> {
        self.order(&Order::Usage);
        match self.hear(Instant::now() + LIMIT)? {
            Answer::Used(used) => Ok(used),
            other => Err(unexpected(&self.name, &other)),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Processes that reduce together.
#[derive(Debug)]
pub(crate) struct Group {
    master: Option<Process>,
    members: Vec<Process>,
}

/// One repetition, as all have seen it.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Repetition {
    /// What each member says.
    pub(crate) done: Vec<Done>,
    /// Time of all cores that the master took meanwhile, in seconds.
    pub(crate) master_cpu: f64,
    /// Cores that were busy with something else meanwhile; none where the system does not say.
    pub(crate) others: Option<f64>,
}

impl Group {
    /// A master and `count` peers over the library, which are one run when this returns.
    pub(crate) fn library(place: &Place, settings: &[String], count: u32) -> Result<Self, Trouble> {
        let listen = ["master".to_owned(), "--listen".to_owned(), place.listen(0)];
        let master = Process::start(place, 0, &listen)?;
        let address = master.address()?.to_string();
        let mut arguments = vec!["peer".to_owned(), "--master".to_owned(), address];
        arguments.extend_from_slice(settings);
        let members = (0..count).map(|number| Process::start(place, number, &arguments));
        let mut group = Self {
            members: members.collect::<Result<_, _>>()?,
            master: Some(master),
        };
        group.join(&vec![None; count as usize])?;
        Ok(group)
    }

    /// `count` processes of the bare loop.
    pub(crate) fn floor(place: &Place, count: u32) -> Result<Self, Trouble> {
        let start = |number| {
            let listen = [
                "floor".to_owned(),
                "--listen".to_owned(),
                place.listen(number),
            ];
            Process::start(place, number, &listen)
        };
        let members: Vec<Process> = (0..count).map(start).collect::<Result<_, _>>()?;
        let addresses: Vec<_> = members
            .iter()
            .map(Process::address)
            .collect::<Result<_, _>>()?;
        let mut next: Vec<_> = addresses.into_iter().map(Some).collect();
        next.rotate_left(1);
        let mut group = Self {
            members,
            master: None,
        };
        group.join(&next)?;
        Ok(group)
    }

    /// Lets all have buffers; `work` for the first of them, the others' differs in who they are.
    pub(crate) fn prepare(&mut self, work: Work) -> Result<(), Trouble> {
        for (identity, member) in (0..).zip(&mut self.members) {
            member.order(&Order::Prepare(Work { identity, ..work }));
        }
        self.ready()
    }

    /// One repetition by all, on fresh contributions. The first member is late by `late`.
    pub(crate) fn go(&mut self, go: Go, late: Duration) -> Result<Repetition, Trouble> {
        self.order(&Order::Fill);
        self.ready()?;
        let before = self.snapshot()?;
        for (number, member) in self.members.iter_mut().enumerate() {
            let late = if number == 0 {
                late.as_millis() as u64
            } else {
                0
            };
            member.order(&Order::Go(Go { late, ..go }));
        }
        let deadline = Instant::now() + LIMIT + late;
        let done = self
            .members
            .iter()
            .map(|member| match member.hear(deadline)? {
                Answer::Done(done) => Ok(done),
                other => Err(unexpected(&member.name, &other)),
            });
        let done: Vec<Done> = done.collect::<Result<_, _>>()?;
        let after = self.snapshot()?;
        check(&done)?;
        let others = after
            .busy
            .zip(before.busy)
            .map(|(after_busy, before_busy)| {
                let all = after_busy - before_busy - (after.own - before.own);
                (all / (after.at - before.at).as_secs_f64().max(1e-3)).max(0.0)
            });
        Ok(Repetition {
            done,
            master_cpu: after.master - before.master,
            others,
        })
    }

    /// Bytes that each still holds over what it had before the first repetition; the largest.
    pub(crate) fn held(&mut self) -> Result<Option<u64>, Trouble> {
        let used = self.members.iter_mut().map(Process::used);
        let used: Vec<Used> = used.collect::<Result<_, _>>()?;
        Ok(used.iter().filter_map(|used| used.memory).max())
    }

    fn join(&mut self, next: &[Option<SocketAddr>]) -> Result<(), Trouble> {
        let members = next.len() as u32;
        for ((place, member), next) in (0..).zip(&mut self.members).zip(next) {
            member.order(&Order::Join(Join {
                members,
                place,
                next: *next,
            }));
        }
        let deadline = Instant::now() + START;
        self.members
            .iter()
            .try_for_each(|member| match member.hear(deadline)? {
                Answer::Joined => Ok(()),
                other => Err(unexpected(&member.name, &other)),
            })
    }

    fn order(&mut self, order: &Order) {
        self.members
            .iter_mut()
            .for_each(|member| member.order(order));
    }

    fn ready(&self) -> Result<(), Trouble> {
        let deadline = Instant::now() + LIMIT;
        self.members
            .iter()
            .try_for_each(|member| match member.hear(deadline)? {
                Answer::Ready => Ok(()),
                other => Err(unexpected(&member.name, &other)),
            })
    }

    fn snapshot(&mut self) -> Result<Snapshot, Trouble> {
        let master = match &mut self.master {
            Some(master) => master.used()?.cpu,
            None => 0.0,
        };
        let members = self.members.iter_mut().map(Process::used);
        let members: Vec<Used> = members.collect::<Result<_, _>>()?;
        Ok(Snapshot {
            at: Instant::now(),
            master,
            own: master + members.iter().map(|used| used.cpu).sum::<f64>() + crate::usage::cpu(),
            busy: crate::usage::busy(),
        })
    }
}

/// What had been used at a moment, in seconds of cores.
struct Snapshot {
    at: Instant,
    master: f64,
    /// By all processes of the measurement.
    own: f64,
    /// By all processes of the machine.
    busy: Option<f64>,
}

/// All results are right, and the same.
fn check(done: &[Done]) -> Result<(), Trouble> {
    if let Some(wrong) = done.iter().find_map(|done| done.wrong.clone()) {
        return Err(Trouble::Failed(wrong));
    }
    let digests: BTreeSet<u64> = done.iter().map(|done| done.digest).collect();
    if digests.len() > 1 {
        return Err(Trouble::Failed("members have different bits".into()));
    }
    Ok(())
}

fn unexpected(name: &str, answer: &Answer) -> Trouble {
    Trouble::Failed(format!("{name} said {answer:?}"))
}

/// How long processes may take to start and to find each other.
const START: Duration = Duration::from_secs(60);

/// How long anything else may take, beyond what it is told to wait: the largest tensors over the
/// slowest links that are worth measuring.
const LIMIT: Duration = Duration::from_secs(180);
