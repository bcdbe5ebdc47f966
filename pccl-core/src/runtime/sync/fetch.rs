//! Fetches chunks from one seeder, on a thread of its own.

use std::collections::VecDeque;
use std::net::TcpStream;
use std::ops::Range;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

use super::Task;
use super::cancel::Cancel;
use super::framed::Framed;
use super::progress::Watch;
use crate::ids::{Digest, MemberId};
use crate::state::digest::{CHUNK_BYTES, chunk_digest};
use crate::state::ledger::{Ledger, Step};
use crate::transport::handshake::{self, Dial};
use crate::wire::control::MemberInfo;
use crate::wire::frame;
use crate::wire::lane::Purpose;
use crate::wire::state::{REPLY_LIMIT, REQUEST_LIMIT, StatePart, StateReply, StateRequest};

/// What all fetching threads share.
pub(super) struct Fetch<'t> {
    progress: Mutex<Progress>,
    changed: Condvar,
    /// By tensor: its key, and its chunks as they lie in memory.
    tensors: Vec<Place<'t>>,
    watch: &'t Watch,
    /// Whether it is of interest where content differs: that of members that should have had the
    /// same.
    compares: bool,
}

/// Where a tensor's chunks go. The ledger gives a chunk to one thread at a time; the locks, which
/// are therefore never waited for, show it to the compiler.
pub(super) struct Place<'t> {
    pub(super) key: &'t str,
    pub(super) bytes: usize,
    pub(super) chunks: Vec<Mutex<&'t mut [u8]>>,
}

struct Progress {
    ledger: Ledger,
    ended: bool,
}

impl<'t> Fetch<'t> {
    /// `tensors` are those of the ledger, in its order.
    pub(super) fn new(
        ledger: Ledger,
        tensors: Vec<Place<'t>>,
        watch: &'t Watch,
        compares: bool,
    ) -> Self {
        watch.begin(tensors.iter().map(|t| t.bytes as u64).sum());
        Self {
            progress: Mutex::new(Progress {
                ledger,
                ended: false,
            }),
            changed: Condvar::new(),
            tensors,
            watch,
            compares,
        }
    }

    /// Whether all is there.
    pub(super) fn is_complete(&self) -> bool {
        self.progress().ledger.is_complete()
    }

    /// Nothing more is to be fetched.
    pub(super) fn end(&self) {
        self.progress().ended = true;
        self.changed.notify_all();
    }

    /// What to ask a seeder for; waits while others have all that is left, if nothing else is to
    /// be done.
    fn next(&self, seeder: MemberId, idle: bool) -> Step {
        let mut progress = self.progress();
        loop {
            if progress.ended {
                return Step::Finished;
            }
            match progress.ledger.next(seeder) {
                Step::Wait if idle => {
                    progress = self
                        .changed
                        .wait(progress)
                        .unwrap_or_else(PoisonError::into_inner);
                }
                step => return step,
            }
        }
    }

    fn update<T>(&self, change: impl FnOnce(&mut Ledger) -> T) -> T {
        let result = change(&mut self.progress().ledger);
        self.changed.notify_all();
        result
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        // The ledger's methods leave it whole, or do not return.
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of what a step asks for, about.
    fn size(&self, step: Step) -> usize {
        match step {
            Step::List { count, .. } => count as usize * size_of::<Digest>(),
            Step::Chunks { tensor, count, .. } => {
                let whole = self.tensors.get(tensor).map_or(0, |t| t.bytes);
                whole.min(count as usize * CHUNK_BYTES as usize)
            }
            Step::Wait | Step::Finished => 0,
        }
    }

    pub(super) fn key(&self, tensor: usize) -> String {
        self.tensors.get(tensor).map_or("", |t| t.key).to_owned()
    }
}

/// Fetches from one seeder until all is there, or all ends. The error says what is wrong with it;
/// what it was asked for is left to others.
pub(super) fn fetch(
    fetch: &Fetch<'_>,
    task: &Task,
    seeder: &MemberInfo,
    cancel: &Cancel,
) -> Result<(), String> {
    let result = dial(task, seeder, cancel).and_then(|stream| {
        let _registered = cancel.register(&stream)?;
        let silence = task.timing.peer_timeout * 2;
        let link = Framed::new(stream, REPLY_LIMIT, Some(silence), silence);
        let fetcher = Fetcher {
            fetch,
            task,
            seeder: seeder.id,
            link: link.map_err(|e| e.to_string())?,
            scratch: vec![0; CHUNK_BYTES as usize].into_boxed_slice(),
        };
        fetcher.run()
    });
    if result.is_err() {
        fetch.update(|ledger| ledger.lost(seeder.id));
    }
    result
}

/// Opens a connection, from a thread that has no event loop.
fn dial(task: &Task, seeder: &MemberInfo, cancel: &Cancel) -> Result<TcpStream, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| e.to_string())?;
    let dial = Dial {
        peer: seeder.clone(),
        run: task.run,
        own: task.own,
        token: task.token,
        purpose: Purpose::State,
    };
    runtime.block_on(async {
        let deadline = Instant::now() + task.timing.dial();
        tokio::select! {
            dialled = handshake::dial(&dial, deadline, &task.timing) => match dialled {
                Ok(dialled) => dialled.stream.into_std().map_err(|e| e.to_string()),
                Err(e) => Err(e.to_string()),
            },
            () = cancel.ended() => Err("the synchronisation has ended".into()),
        }
    })
}

struct Fetcher<'f, 't> {
    fetch: &'f Fetch<'t>,
    task: &'f Task,
    seeder: MemberId,
    link: Framed,
    /// A chunk stays here until it is known to be right.
    scratch: Box<[u8]>,
}

impl Fetcher<'_, '_> {
    fn run(mut self) -> Result<(), String> {
        let mut under_way = VecDeque::new();
        let (mut requests, mut answers) = (0, 0);
        loop {
            while under_way.len() < REQUESTS || (requests < REQUEST_BYTES && answers < ANSWER_BYTES)
            {
                match self.fetch.next(self.seeder, under_way.is_empty()) {
                    Step::Wait | Step::Finished => break,
                    step => {
                        let request = self.ask(step)?;
                        let answer = self.fetch.size(step);
                        requests += request;
                        answers += answer;
                        under_way.push_back((step, request, answer));
                    }
                }
            }
            match under_way.pop_front() {
                Some((step, request, answer)) => {
                    self.take(step)?;
                    requests -= request;
                    answers -= answer;
                }
                None => return Ok(()),
            }
        }
    }

    /// Returns the bytes of the request.
    fn ask(&mut self, step: Step) -> Result<usize, String> {
        let (tensor, part) = match step {
            Step::List {
                tensor,
                first,
                count,
            } => (tensor, StatePart::Digests { first, count }),
            Step::Chunks {
                tensor,
                first,
                count,
            } => (tensor, StatePart::Chunks { first, count }),
            Step::Wait | Step::Finished => return Ok(0),
        };
        let request = StateRequest {
            op: self.task.plan.op,
            key: self.fetch.key(tensor),
            part,
        };
        let frame = frame::encode(&request, REQUEST_LIMIT).map_err(|e| e.to_string())?;
        self.link.send_bytes(&frame)?;
        Ok(frame.len())
    }

    fn take(&mut self, step: Step) -> Result<(), String> {
        match step {
            Step::List { tensor, .. } => match self.reply()? {
                StateReply::Digests(page) => {
                    let seeder = self.seeder;
                    let right = self.fetch.update(|l| l.listed(seeder, tensor, &page))?;
                    self.fetch.watch.right(right.saturating_mul(CHUNK_BYTES));
                    Ok(())
                }
                other => Err(unexpected(&other)),
            },
            Step::Chunks {
                tensor,
                first,
                count,
            } => (first..first + u64::from(count)).try_for_each(|c| self.take_chunk(tensor, c)),
            Step::Wait | Step::Finished => Ok(()),
        }
    }

    fn take_chunk(&mut self, tensor: usize, chunk: u64) -> Result<(), String> {
        let (number, length) = match self.reply()? {
            StateReply::Chunk { chunk, length } => (chunk, length as usize),
            other => return Err(unexpected(&other)),
        };
        let chunks = self.fetch.tensors.get(tensor).map(|t| &t.chunks);
        let index = usize::try_from(chunk).ok();
        let place = chunks.and_then(|c| c.get(index?));
        let Some(place) = place.filter(|_| number == chunk) else {
            return Err(format!("chunk {number} where chunk {chunk} was asked for"));
        };
        let mut place = place.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(scratch) = self
            .scratch
            .get_mut(..length)
            .filter(|_| length == place.len())
        else {
            let wanted = place.len();
            return Err(format!("{length} bytes of a chunk that has {wanted}"));
        };
        self.link.bytes(scratch)?;
        let digest: Digest = chunk_digest(scratch);
        if !self.fetch.progress().ledger.check(tensor, chunk, digest) {
            let key = self.fetch.key(tensor);
            return Err(format!("chunk {chunk} of {key:?} is not what it has to be"));
        }
        let differed = match self.fetch.compares {
            true => differing(place.as_ref(), scratch).map(|range| {
                let start = chunk * CHUNK_BYTES;
                start + range.start as u64..start + range.end as u64
            }),
            false => None,
        };
        place.copy_from_slice(scratch);
        let watch = self.fetch.watch;
        watch.stored(self.seeder, length as u64, tensor, differed);
        self.fetch.update(|ledger| ledger.stored(tensor, chunk));
        Ok(())
    }

    fn reply(&mut self) -> Result<StateReply, String> {
        match self.link.message()? {
            Some(StateReply::No(refusal)) => Err(refusal.to_string()),
            Some(reply) => Ok(reply),
            None => Err("it closed the connection".into()),
        }
    }
}

/// From the first to behind the last byte in which two contents of one length differ.
fn differing(a: &[u8], b: &[u8]) -> Option<Range<usize>> {
    let differs = |(a, b): (&u8, &u8)| a != b;
    let first = a.iter().zip(b).position(differs)?;
    let last = a.iter().zip(b).rposition(differs)?;
    Some(first..last + 1)
}

fn unexpected(reply: &StateReply) -> String {
    let what = match reply {
        StateReply::Digests(_) => "digests",
        StateReply::Chunk { .. } => "a chunk",
        StateReply::No(_) => "a refusal",
    };
    format!("{what} where something else was asked for")
}

/// Requests under way at a time, whatever their size: the seeder always has one to work on.
const REQUESTS: usize = 2;

/// More are under way while they ask for no more bytes than this, so that a long path stays full
/// of small tensors too.
const ANSWER_BYTES: usize = 8 << 20;

/// And while they are together no longer than this. What a socket takes without being read is more
/// on every system: so neither end waits to write while the other does.
const REQUEST_BYTES: usize = 16 << 10;
