//! Runs plans over lanes. Pure: bytes of lanes in, bytes of lanes out.
//!
//! The driver owns sockets and clock, the [`Engine`] decides. Per lane, the driver reads into
//! [`Engine::sink`] and reports with [`Engine::received`]; it writes what [`Engine::gather`] gives
//! and reports with [`Engine::sent`]. After every call it drains [`Engine::poll_event`] and
//! [`Engine::poll_writable`], and it calls [`Engine::tick`] when [`Engine::next_deadline`] passes.
//!
//! - `op`, `slice`, `fold`, `gather`, `outgoing`: one operation: what has come, what can go (pure state).
//! - `edge`, `lane`, `link`: one neighbour, one connection to it, one operation on it.
//! - `receive`, `transmit`, `opening`, `lanes`, `timers`: what the engine does when bytes come,
//!   when bytes can go, when somebody opens an operation, when lanes come and go, when time passes.
//! - `window`, `backup`, `scratch`: memory.

mod backup;
mod edge;
mod fold;
mod gather;
mod io;
mod lane;
mod lanes;
mod link;
mod op;
mod opening;
mod outgoing;
mod receive;
mod scratch;
mod slice;
#[cfg(test)]
mod tests;
mod timers;
mod transmit;
mod window;

use std::collections::{BTreeMap, VecDeque};

use self::edge::Edge;
use self::lane::Lane;
use self::op::{Op, Trouble};
use self::scratch::BlockPool;
use self::timers::IDLE;
use self::window::{Lending, SMALL_ROOM};
use super::buffers::Lent;
use crate::ids::{CallId, LaneId, MemberId, Time};
use crate::types::OpKey;
use crate::wire::lane::PAYLOAD_LIMIT;
use crate::wire::reason::RequestCause;

pub use io::{EngineConfig, EngineEvent, EngineGroup, OpStats, StartReduce};

/// All operations in flight at one member, and the lanes that they share.
#[derive(Debug)]
pub struct Engine {
    config: EngineConfig,
    group: EngineGroup,
    now: Time,
    lanes: BTreeMap<LaneId, Lane>,
    edges: BTreeMap<MemberId, Edge>,
    /// By serial, and so oldest first.
    ops: BTreeMap<u64, Op>,
    calls: BTreeMap<CallId, u64>,
    keys: BTreeMap<OpKey, u64>,
    last_serial: u64,
    events: VecDeque<EngineEvent>,
    writable: VecDeque<LaneId>,
    /// Takes payloads that nobody wants.
    discard: Vec<u8>,
    lending: Lending,
    rooms: BlockPool,
    originals: BlockPool,
    next_tick: Option<Time>,
    /// When memory that nothing has used since is given back.
    release: Option<Time>,
}

impl Engine {
    /// An engine without group, lanes and operations.
    pub fn new(config: EngineConfig, now: Time) -> Self {
        let segment = config.segment.clamp(SEGMENT_MIN, PAYLOAD_LIMIT) / 8 * 8;
        let scratch = usize::try_from(config.scratch).unwrap_or(usize::MAX);
        Self {
            config: EngineConfig { segment, ..config },
            group: EngineGroup::default(),
            now,
            lanes: BTreeMap::new(),
            edges: BTreeMap::new(),
            ops: BTreeMap::new(),
            calls: BTreeMap::new(),
            keys: BTreeMap::new(),
            last_serial: 0,
            events: VecDeque::new(),
            writable: VecDeque::new(),
            discard: vec![0; DISCARD],
            lending: Lending::new(config.scratch),
            rooms: BlockPool::new(SMALL_ROOM as usize, scratch),
            originals: BlockPool::new(backup::BLOCK as usize, usize::MAX),
            next_tick: None,
            release: None,
        }
    }

    /// The group is this now. OPENs of older epochs that wait for a call here are dropped: the
    /// master aborts those uses. (Rule 1)
    pub fn set_group(&mut self, group: EngineGroup, now: Time) {
        self.now = now;
        self.group = group;
        self.drop_stale_opens();
    }

    /// Starts an operation. It sends OPEN to its neighbours, and data as they have room for it.
    ///
    /// A start that makes no sense (buffers of the wrong length, a key in use, the own number not
    /// in the group), or one by an algorithm that the group has no plan for, is answered by [`EngineEvent::Failed`], and the buffers are let go at once.
    pub fn start(&mut self, start: StartReduce, lent: Lent, now: Time) {
        self.now = now;
        let key = start.op.key;
        let (op, quoted) = (start.op, start.quoted);
        let made = if self.keys.contains_key(&key) || self.calls.contains_key(&start.call) {
            let what = format!("{key} or its call is open already");
            Err(RequestCause::Internal { what })
        } else {
            Op::new(start, lent)
        };
        let mut op = match made {
            Ok(op) => op,
            Err(cause) => {
                let failed = EngineEvent::Failed { op, quoted, cause };
                self.events.push_back(failed);
                return;
            }
        };
        self.release = None;
        self.last_serial += 1;
        let serial = self.last_serial;
        op.borrow_room(&mut self.lending);
        self.calls.insert(op.call, serial);
        self.keys.insert(key, serial);
        let peers: Vec<MemberId> = op.links.iter().map(|link| link.peer).collect();
        let op = self.ops.entry(serial).or_insert(op);
        let alone = match peers.is_empty() {
            true => op.reduce_alone(&mut self.originals),
            false => Ok(()),
        };
        if let Err(trouble) = alone {
            self.fail(serial, trouble, MemberId::default());
        }
        for peer in &peers {
            let edge = self.edges.entry(*peer).or_default();
            edge.opens.push_back(serial);
            self.wake_edge(*peer);
        }
        for peer in peers {
            self.take_held(serial, peer);
        }
        self.progress(serial);
        self.start_clock();
    }

    /// Ends the operation of a call, as the master decided, and lets go of its buffers: they are
    /// not touched any more when this returns. What they held before is restored unless the result
    /// stands. (Rule 8)
    pub fn finish(&mut self, call: CallId, commit: bool) -> OpStats {
        let Some(serial) = self.calls.remove(&call) else {
            return OpStats::default();
        };
        // Frames half written from the user's buffers go on from the lane's own.
        self.keep_half_written(serial);
        let Some(op) = self.ops.remove(&serial) else {
            return OpStats::default();
        };
        self.keys.remove(&op.name.key);
        for link in &op.links {
            if let Some(edge) = self.edges.get_mut(&link.peer) {
                edge.forget(serial);
            }
        }
        let stats = op.finish(
            commit,
            &mut self.lending,
            &mut self.rooms,
            &mut self.originals,
        );
        self.lend_room();
        if self.ops.is_empty() {
            self.release = Some(self.now + IDLE);
        }
        stats
    }

    /// Ends all operations without a result, at the end of whoever drives this: their buffers are as
    /// they were, and let go of. Rests on nothing that a panic in the middle of another method
    /// could have left undone.
    pub fn restore_all(&mut self) {
        self.calls.clear();
        self.keys.clear();
        while let Some((_, op)) = self.ops.pop_first() {
            op.restore();
        }
    }

    /// Next event, in the order in which they happened.
    pub fn poll_event(&mut self) -> Option<EngineEvent> {
        self.events.pop_front()
    }

    /// A lane that has something to send and had nothing before: since it opened, or since
    /// [`Self::gather`] last gave nothing.
    pub fn poll_writable(&mut self) -> Option<LaneId> {
        self.writable.pop_front()
    }

    /// Members that something came from since the last time this was asked. (Rule 14)
    pub fn heard(&mut self) -> Vec<MemberId> {
        let mut heard = Vec::new();
        let lanes = &self.lanes;
        self.edges.retain(|peer, edge| {
            if std::mem::take(&mut edge.heard) {
                heard.push(*peer);
            }
            debug_assert!(edge.lanes().all(|lane| lanes.contains_key(&lane)));
            !edge.is_unused() || self.ops.values().any(|op| op.has_link(*peer))
        });
        heard
    }

    /// Reports that the operation cannot go on, once.
    fn fail(&mut self, serial: u64, trouble: Trouble, peer: MemberId) {
        let cause = match trouble {
            Trouble::Frame(what) => RequestCause::BadFrame { peer, what },
            Trouble::Own(what) => RequestCause::Internal { what },
        };
        self.fail_with(serial, cause);
    }

    fn fail_with(&mut self, serial: u64, cause: RequestCause) {
        if let Some(op) = self.ops.get_mut(&serial)
            && !op.failed
        {
            op.failed = true;
            self.events.push_back(EngineEvent::Failed {
                op: op.name,
                quoted: op.quoted,
                cause,
            });
        }
    }

    /// Does what has become possible for an operation: report that it is done, offer its data.
    fn progress(&mut self, serial: u64) {
        let Some(op) = self.ops.get_mut(&serial) else {
            return;
        };
        if !op.is_running() {
            return;
        }
        if !op.done
            && op.is_complete()
            && let Some(result) = op.result()
        {
            op.done = true;
            self.events.push_back(EngineEvent::Done {
                op: op.name,
                quoted: op.quoted,
                result,
            });
        }
        self.offer(serial);
    }

    /// Lends room that has become free, to the oldest first.
    fn lend_room(&mut self) {
        let mut grants = Vec::new();
        for (serial, op) in &mut self.ops {
            if op.is_running() && op.borrow_room(&mut self.lending) {
                let due = op.grants_due();
                grants.extend(due.into_iter().map(|position| (*serial, position)));
            }
        }
        for (serial, position) in grants {
            self.queue_grant(serial, position);
        }
    }
}

/// Smallest segment: one element of the largest type.
const SEGMENT_MIN: u32 = 8;

/// Bytes read at once of a payload that nobody wants: few system calls, and no more than the
/// nearest cache holds.
const DISCARD: usize = 16 * 1024;
