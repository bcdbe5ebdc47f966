//! The user's part of a synchronisation, from the plan to the verdict.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::thread::{Builder, Scope};
use std::time::Instant;

use super::cancel::Cancel;
use super::fetch::{Fetch, How, Place, fetch};
use super::seeders::Seeders;
use super::serve::{Given, Seed, serve};
use super::{Message, SyncOrders, Task, Watch};
use crate::ids::{Digest, MemberId};
use crate::membership::peer::PeerInput;
use crate::state::digest::{CHUNK_BYTES, TensorDigest, state_digest};
use crate::state::ledger::{Ledger, Wanted};
use crate::state::shared::SharedTensor;
use crate::threads;
use crate::transport::channel;
use crate::transport::slots::Slot;
use crate::trap::{self, Trap};
use crate::types::DigestKind;
use crate::wire::reason::RequestCause;

/// What a synchronisation has done to the own state, whatever the verdict.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Synchronised {
    /// Bytes of content given to others.
    pub(crate) tx_bytes: u64,
    /// Bytes of content fetched.
    pub(crate) rx_bytes: u64,
    /// Revision of the elected state; none if no plan came.
    pub(crate) revision: Option<u64>,
    /// Whether a fetch broke off: the content may be that of two revisions. (Rule 22)
    pub(crate) torn: bool,
    /// Who gave how many of the bytes fetched.
    pub(crate) sources: Vec<(MemberId, u64)>,
    /// Tensors that were not the elected ones although the revision was.
    pub(crate) differences: Vec<Difference>,
}

/// A tensor that should have been that of the others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Difference {
    pub(crate) key: String,
    /// From the first to behind the last byte that differed.
    pub(crate) bytes: Range<u64>,
    /// Who had the other content.
    pub(crate) holders: Vec<MemberId>,
}

/// The own state as it was offered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Own<'d> {
    /// Digests of the run.
    pub(crate) kind: DigestKind,
    /// By tensor.
    pub(crate) digests: &'d [TensorDigest],
    /// Its revision.
    pub(crate) revision: u64,
}

/// Carries a plan out, and serves others, until the control thread ends it. `says` takes what the
/// peer machine must know.
pub(crate) fn run(
    tensors: &mut [SharedTensor<'_>],
    own: Own<'_>,
    watch: &Watch,
    orders: SyncOrders,
    says: impl Fn(PeerInput),
) -> Synchronised {
    let mut early = Vec::new();
    let task = loop {
        match orders.messages.recv() {
            Ok(Message::Plan(task)) => break *task,
            Ok(Message::End) | Err(_) => return Synchronised::default(),
            Ok(other) => early.push(other),
        }
    };
    let parts = match divide(tensors, own, &task) {
        Ok(parts) => parts,
        Err(what) => {
            says(failed(&task, what));
            // Members are told by the master; until then there is nothing to do.
            while !matches!(orders.messages.recv(), Ok(Message::End) | Err(_)) {}
            return Synchronised::default();
        }
    };
    // What differs at an old revision, or where members may differ, is no surprise.
    let same = own.revision == task.plan.revision;
    let equal: Vec<bool> = parts.wanted.iter().map(|w| w.expected.is_some()).collect();
    let most = parts.requests.clamp(1, FETCHERS);
    let others = task.plan.seeders.iter().filter(|s| s.id != task.own);
    let ledger = Ledger::new(parts.wanted).shared_by(others.count().min(most));
    let how = How {
        kind: own.kind,
        patience: task.timing.heartbeat,
        compares: same,
    };
    let fetch = Fetch::new(ledger, parts.places, watch, how);
    let seed = Seed {
        op: task.plan.op,
        tensors: parts.given,
        sent: AtomicU64::new(0),
        packs: task.packs,
        packers: AtomicUsize::new(0),
    };
    let cancel = Cancel::new();
    std::thread::scope(|scope| {
        let mut job = Job {
            scope,
            orders: &orders,
            task: &task,
            fetch: &fetch,
            seed: &seed,
            cancel: &cancel,
            seeders: Seeders::new(&task.plan.seeders, task.own),
            most,
            result: parts.result,
            reported: false,
            says: &says,
        };
        // Also when this panics: the scope waits for its threads, which must not wait for more.
        let _end = End(&fetch, &cancel);
        job.run(early);
    });
    let rx_bytes = watch.fetched();
    let holders: Vec<MemberId> = task.plan.seeders.iter().map(|s| s.id).collect();
    let differing = watch.differing().into_iter();
    let differing = differing.filter(|(tensor, _)| equal.get(*tensor) == Some(&true));
    Synchronised {
        tx_bytes: seed.sent.load(Ordering::Relaxed),
        rx_bytes,
        revision: Some(task.plan.revision),
        torn: rx_bytes > 0 && !fetch.is_complete(),
        sources: watch.sources(),
        differences: differing
            .map(|(tensor, bytes)| Difference {
                key: fetch.key(tensor),
                bytes,
                holders: holders.clone(),
            })
            .collect(),
    }
}

/// Ends all threads of a synchronisation when dropped.
struct End<'e, 't>(&'e Fetch<'t>, &'e Cancel);

impl Drop for End<'_, '_> {
    fn drop(&mut self) {
        self.0.end();
        self.1.end();
    }
}

/// The own state, by what is done with each tensor.
struct Parts<'t> {
    wanted: Vec<Wanted>,
    places: Vec<Place<'t>>,
    given: BTreeMap<&'t str, Given<'t>>,
    /// Requests that it takes to fetch all, at most.
    requests: usize,
    /// Digest of the state that this member ends with.
    result: Digest,
}

fn divide<'t>(
    tensors: &'t mut [SharedTensor<'_>],
    own: Own<'t>,
    task: &Task,
) -> Result<Parts<'t>, String> {
    let mut entries: BTreeMap<_, _> = task.plan.fetch.iter().map(|e| (&*e.key, e)).collect();
    let mut wanted = Vec::new();
    let mut places = Vec::new();
    let mut given = BTreeMap::new();
    let mut roots = Vec::new();
    let mut requests = 0;
    for (tensor, digest) in tensors.iter_mut().zip(own.digests) {
        let count = tensor.count();
        let key = tensor.key.as_str();
        let mut root = digest.root;
        if let Some(entry) = entries.remove(key) {
            root = entry.digest.unwrap_or(root);
            wanted.push(Wanted {
                kind: own.kind,
                data_type: tensor.data_type,
                count,
                expected: entry.digest,
                own: digest.chunks.clone(),
            });
            let bytes = tensor.bytes.len();
            let chunks = tensor.bytes.chunks_mut(CHUNK_BYTES as usize);
            requests += chunks.len();
            let chunks = chunks.map(Mutex::new).collect();
            places.push(Place { key, bytes, chunks });
        } else {
            let bytes = &*tensor.bytes;
            let digests = &digest.chunks;
            given.insert(key, Given { bytes, digests });
        }
        if !tensor.allow_content_inequality {
            roots.push((key, root));
        }
    }
    match entries.into_keys().next() {
        Some(key) => Err(format!("the plan asks for {key:?}, which is not here")),
        None => Ok(Parts {
            wanted,
            places,
            given,
            requests,
            result: state_digest(task.plan.revision, roots),
        }),
    }
}

struct Job<'scope, 'env, 't, F> {
    scope: &'scope Scope<'scope, 'env>,
    orders: &'env SyncOrders,
    task: &'env Task,
    fetch: &'env Fetch<'t>,
    seed: &'env Seed<'t>,
    cancel: &'env Cancel,
    seeders: Seeders,
    /// Seeders that are fetched from at a time.
    most: usize,
    result: Digest,
    /// Whether the master has been told how it went.
    reported: bool,
    says: &'env F,
}

impl<'t: 'env, 'env, F: Fn(PeerInput)> Job<'_, 'env, 't, F> {
    /// Until the control thread ends it.
    fn run(&mut self, early: Vec<Message>) {
        for message in early {
            if self.handle(message) {
                return;
            }
        }
        loop {
            trap::pass(Trap::Sync);
            self.start_fetching();
            self.report();
            let now = Instant::now();
            let received = match self.retry_at().map(|at| at.saturating_duration_since(now)) {
                Some(wait) => self.orders.messages.recv_timeout(wait),
                None => self.orders.messages.recv().map_err(RecvTimeoutError::from),
            };
            match received {
                Ok(message) => {
                    if self.handle(message) {
                        return;
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Whether that was the end.
    fn handle(&mut self, message: Message) -> bool {
        match message {
            Message::End => return true,
            Message::Plan(task) => {
                // Who is no member any more is not waited for.
                for id in self.seeders.replace(&task.plan.seeders, task.own) {
                    self.fetch.lost(id);
                }
                self.reported = self.reported && self.fetch.is_complete();
            }
            Message::Serve {
                parts,
                reader,
                slot,
            } => self.serve(parts, reader, slot),
            Message::Fetched { seeder, result } => self.seeders.ended(seeder, result),
        }
        false
    }

    fn serve(&self, parts: channel::Parts, reader: MemberId, slot: Slot) {
        let (seed, cancel) = (self.seed, self.cancel);
        let silence = self.task.timing.peer_timeout * 2;
        let work = move || {
            let _slot = slot;
            if let Err(cause) = whole(|| serve(seed, parts, cancel, silence)) {
                tracing::debug!(target: "pccl::peer", %reader, cause, "stopped serving state");
            }
        };
        let started = thread().and_then(|thread| thread.spawn_scoped(self.scope, work));
        if let Err(cause) = started {
            tracing::warn!(target: "pccl::peer", %reader, %cause, "no thread to serve state");
        }
    }

    fn start_fetching(&mut self) {
        while !self.fetch.is_complete() && self.seeders.busy() < self.most {
            let Some(seeder) = self.seeders.pick(Instant::now()) else {
                return;
            };
            let (fetched, task, cancel) = (self.fetch, self.task, self.cancel);
            let back = self.orders.back.clone();
            let id = seeder.id;
            let work = move || {
                let result = whole(|| fetch(fetched, task, &seeder, cancel));
                // The receiver outlives this thread.
                let seeder = seeder.id;
                let _ = back.send(Message::Fetched { seeder, result });
            };
            let started = thread().and_then(|thread| thread.spawn_scoped(self.scope, work));
            if let Err(cause) = started {
                self.seeders.ended(id, Err(cause.to_string()));
            }
        }
    }

    /// When to try again without having heard anything.
    fn retry_at(&self) -> Option<Instant> {
        if self.fetch.is_complete() || self.seeders.busy() >= self.most {
            return None;
        }
        self.seeders.retry_at()
    }

    fn report(&mut self) {
        if self.reported {
            return;
        }
        let plan = &self.task.plan;
        if self.fetch.is_complete() {
            (self.says)(PeerInput::OpDone {
                op: plan.op,
                quoted: plan.quoted,
                result: self.result,
            });
        } else if self.seeders.exhausted() {
            (self.says)(failed(self.task, self.seeders.causes()));
        } else {
            return;
        }
        self.reported = true;
    }
}

fn failed(task: &Task, what: String) -> PeerInput {
    PeerInput::OpFailed {
        op: task.plan.op,
        quoted: task.plan.quoted,
        cause: RequestCause::FetchFailed { what },
    }
}

fn thread() -> io::Result<Builder> {
    threads::named("pccl-state")
}

/// A bug in one connection's thread is that connection's end, not that of the user's call.
fn whole(work: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err("its thread panicked".into()))
}

/// Seeders that are fetched from at a time, at most: more do not fill a link that these do not.
const FETCHERS: usize = 16;
