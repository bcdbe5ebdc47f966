//! Fetches chunks from one seeder, on a thread of its own.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::Task;
use super::cancel::Cancel;
use super::framed::Framed;
use super::progress::Watch;
use super::unpack::unpack;
use crate::ids::{ContentDigest, MemberId};
use crate::state::digest::{CHUNK_BYTES, chunk_digest, chunk_range};
use crate::state::ledger::{Came, Ledger, Step};
use crate::transport::channel::Parts;
use crate::transport::handshake::{self, Dial};
use crate::transport::secure::Room;
use crate::trap::{self, Trap};
use crate::types::DigestKind;
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
    kind: DigestKind,
    /// Silence of a seeder after which those that have nothing else to do take over from it.
    patience: Duration,
    /// Whether it is of interest where content differs: that of members that should have had the
    /// same.
    compares: bool,
}

/// Where a tensor's chunks go. The ledger mostly gives a chunk to one thread at a time, so that the
/// locks, which are held while a chunk is copied, are hardly ever waited for.
pub(super) struct Place<'t> {
    pub(super) key: &'t str,
    pub(super) bytes: usize,
    pub(super) chunks: Vec<Mutex<&'t mut [u8]>>,
}

/// How to fetch.
pub(super) struct How {
    /// Digests of the run.
    pub(super) kind: DigestKind,
    /// Silence of a seeder after which others may take over from it.
    pub(super) patience: Duration,
    /// Whether to find out where content differs.
    pub(super) compares: bool,
}

struct Progress {
    ledger: Ledger,
    /// When each seeder was last asked for the first time, or gave something.
    heard: BTreeMap<MemberId, Instant>,
    ended: bool,
}

impl Progress {
    /// What silent seeders were asked for is to be had again. Returns whether there is any.
    fn release(&mut self, own: MemberId, patience: Duration) -> bool {
        let Self { ledger, heard, .. } = self;
        let silent = heard.iter();
        let silent = silent.filter(|(id, at)| **id != own && at.elapsed() >= patience);
        let mut any = false;
        for (id, _) in silent {
            if ledger.stalled(*id) {
                tracing::info!(target: "pccl::peer", seeder = %id, "stalled; asking others");
                any = true;
            }
        }
        any
    }
}

impl<'t> Fetch<'t> {
    /// `tensors` are those of the ledger, in its order.
    pub(super) fn new(ledger: Ledger, tensors: Vec<Place<'t>>, watch: &'t Watch, how: How) -> Self {
        watch.begin(tensors.iter().map(|t| t.bytes as u64).sum());
        Self {
            progress: Mutex::new(Progress {
                ledger,
                heard: BTreeMap::new(),
                ended: false,
            }),
            changed: Condvar::new(),
            tensors,
            watch,
            kind: how.kind,
            patience: how.patience.min(PATIENCE),
            compares: how.compares,
        }
    }

    /// Whether all is there.
    pub(super) fn is_complete(&self) -> bool {
        self.progress().ledger.is_complete()
    }

    /// What a seeder was asked for is to be had from others, at once.
    pub(super) fn lost(&self, seeder: MemberId) {
        self.update(|ledger| ledger.lost(seeder));
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
                    if progress.release(seeder, self.patience) {
                        continue;
                    }
                    let waited = self.changed.wait_timeout(progress, self.patience);
                    progress = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
                step => {
                    // Who owed nothing could not give anything.
                    if idle && self.size(step) > 0 {
                        progress.heard.insert(seeder, Instant::now());
                    }
                    return step;
                }
            }
        }
    }

    fn heard(&self, seeder: MemberId) {
        self.progress().heard.insert(seeder, Instant::now());
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
            Step::List { count, .. } => count as usize * size_of::<ContentDigest>(),
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
    let mut asked = Asked {
        fetch,
        seeder: seeder.id,
        answered: false,
    };
    let result = dial(task, seeder, cancel).and_then(|parts| {
        let _registered = cancel.register(&parts.0)?;
        let silence = task.timing.peer_timeout * 2;
        let link = Framed::new(parts, REPLY_LIMIT, Some(silence), silence);
        let fetcher = Fetcher {
            fetch,
            task,
            seeder: seeder.id,
            link: link.map_err(|e| e.to_string())?,
            scratch: room_for_a_chunk()?,
            packed: Vec::new(),
        };
        fetch.heard(seeder.id);
        fetcher.run()
    });
    asked.answered = result.is_ok();
    result
}

/// Zeros. The error says that the system has no memory left.
pub(super) fn room_for_a_chunk() -> Result<Vec<u8>, String> {
    let mut room = Vec::new();
    let refused = |_| "the system refused memory for a chunk".to_owned();
    room.try_reserve_exact(CHUNK_BYTES as usize)
        .map_err(refused)?;
    room.resize(CHUNK_BYTES as usize, 0);
    Ok(room)
}

/// What one seeder is asked for. Left to others unless it was answered, also when this thread
/// panics.
struct Asked<'f, 't> {
    fetch: &'f Fetch<'t>,
    seeder: MemberId,
    answered: bool,
}

impl Drop for Asked<'_, '_> {
    fn drop(&mut self) {
        if !self.answered {
            self.fetch.update(|ledger| ledger.lost(self.seeder));
        }
    }
}

/// Opens a connection, from a thread that has no event loop.
fn dial(task: &Task, seeder: &MemberInfo, cancel: &Cancel) -> Result<Parts, String> {
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
        party: task.party.clone(),
    };
    runtime.block_on(async {
        let deadline = tokio::time::Instant::now() + task.timing.dial();
        tokio::select! {
            dialled = handshake::dial(&dial, deadline, &task.timing) => match dialled {
                Ok(dialled) => dialled.channel.into_parts(Room::FETCH).map_err(|e| e.to_string()),
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
    scratch: Vec<u8>,
    /// One that comes compressed, as it comes. Not there before the first.
    packed: Vec<u8>,
}

impl Fetcher<'_, '_> {
    fn run(mut self) -> Result<(), String> {
        let mut under_way = VecDeque::new();
        let (mut requests, mut answers) = (0, 0);
        loop {
            // Small tensors are asked for until they make up what one request may ask of a large one.
            let share = self.fetch.progress().ledger.share() as usize * CHUNK_BYTES as usize;
            let room = share.max(ANSWER_BYTES);
            while under_way.len() < REQUESTS || (requests < REQUEST_BYTES && answers < room) {
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
                    self.fetch.heard(seeder);
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
        let (number, length, packed) = match self.reply()? {
            StateReply::Chunk { chunk, length } => (chunk, length, None),
            StateReply::Packed {
                chunk,
                length,
                packed,
            } => (chunk, length, Some(packed as usize)),
            other => return Err(unexpected(&other)),
        };
        let fetch = self.fetch;
        let place = fetch.tensors.get(tensor).and_then(|t| {
            let range = chunk_range(t.bytes as u64, chunk)?;
            Some((t.chunks.get(usize::try_from(chunk).ok()?)?, range))
        });
        let Some((place, range)) = place.filter(|_| number == chunk) else {
            return Err(format!("chunk {number} where chunk {chunk} was asked for"));
        };
        let wanted = (range.end - range.start) as usize;
        let scratch = self.scratch.get_mut(..wanted);
        let Some(scratch) = scratch.filter(|_| length as usize == wanted) else {
            return Err(format!("{length} bytes of a chunk that has {wanted}"));
        };
        match packed {
            None => self.link.bytes(scratch)?,
            Some(packed) => {
                if self.packed.is_empty() {
                    self.packed = room_for_a_chunk()?;
                }
                let Some(part) = self.packed.get_mut(..packed).filter(|_| packed < wanted) else {
                    return Err(format!("{packed} bytes for {wanted} compressed ones"));
                };
                self.link.bytes(part)?;
                unpack(part, scratch)?;
            }
        }
        fetch.heard(self.seeder);
        let digest = chunk_digest(fetch.kind, scratch);
        let mut place = place.lock().unwrap_or_else(PoisonError::into_inner);
        let progress = fetch.progress();
        match progress.ledger.check(self.seeder, tensor, chunk, digest) {
            Came::Right => {}
            Came::Late => return Ok(()),
            Came::Wrong => {
                let key = fetch.key(tensor);
                return Err(format!("chunk {chunk} of {key:?} is not what it has to be"));
            }
        }
        // What may differ comes from one seeder as a whole: which one must not change meanwhile.
        let held = match progress.ledger.has_one_source(tensor) {
            true => Some(progress),
            false => {
                drop(progress);
                None
            }
        };
        let differed = match fetch.compares {
            true => differing(place.as_ref(), scratch)
                .map(|part| range.start + part.start as u64..range.start + part.end as u64),
            false => None,
        };
        trap::pass(Trap::Fetch);
        place.copy_from_slice(scratch);
        let missing = match held {
            Some(mut progress) => progress.ledger.stored(tensor, chunk),
            None => fetch.progress().ledger.stored(tensor, chunk),
        };
        fetch.changed.notify_all();
        if missing {
            let watch = fetch.watch;
            watch.stored(self.seeder, wanted as u64, tensor, differed);
        }
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
        StateReply::Chunk { .. } | StateReply::Packed { .. } => "a chunk",
        StateReply::No(_) => "a refusal",
    };
    format!("{what} where something else was asked for")
}

/// Longest silence of a seeder that those who have nothing else to do stand by: some round trips of
/// any path.
const PATIENCE: Duration = Duration::from_secs(1);

/// Requests under way at a time, whatever their size: the seeder always has one to work on.
const REQUESTS: usize = 2;

/// More are under way while they ask for no more bytes than this, or than the share of one request,
/// so that a long path stays full of small tensors too. The share becomes small towards the end: the
/// last chunks are to be shared out among all seeders.
const ANSWER_BYTES: usize = 2 << 20;

/// And while they are together no longer than this. What a socket takes without being read is more
/// on every system: so neither end waits to write while the other does.
const REQUEST_BYTES: usize = 16 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::digest::root;
    use crate::state::ledger::Wanted;
    use crate::types::DataType;

    #[test]
    fn a_seeder_that_had_nothing_to_do_is_not_silent() {
        let chunks = [1, 2].map(ContentDigest::fast);
        let bytes = 2 * CHUNK_BYTES as usize;
        let wanted = Wanted {
            kind: DigestKind::Fast,
            data_type: DataType::U8,
            count: bytes as u64,
            expected: Some(root(DigestKind::Fast, DataType::U8, bytes as u64, &chunks)),
            own: vec![ContentDigest::fast(0); 2],
        };
        let (watch, key) = (Watch::default(), "a");
        let place = Place {
            key,
            bytes,
            chunks: Vec::new(),
        };
        let how = How {
            kind: DigestKind::Fast,
            patience: PATIENCE,
            compares: false,
        };
        let fetch = Fetch::new(Ledger::new(vec![wanted]), vec![place], &watch, how);
        let (one, two) = (MemberId(1), MemberId(2));
        let long_ago = Instant::now().checked_sub(PATIENCE).unwrap();
        for seeder in [one, two] {
            fetch.progress().heard.insert(seeder, long_ago);
        }
        assert!(matches!(fetch.next(one, true), Step::List { .. }));
        assert!(!fetch.progress().release(two, PATIENCE));
        fetch.progress().heard.insert(one, long_ago);
        assert!(fetch.progress().release(two, PATIENCE));
    }
}
