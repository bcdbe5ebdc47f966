//! A shadow of what the masters are told and tell, to count situations and to find the moments at
//! which a fault does most harm. Judges nothing.

use std::collections::{BTreeMap, BTreeSet};

use super::core::{Core, HostId, ProcId};
use super::coverage::Cover;
use super::network::Sock;
use super::oracle::UseKey;
use crate::ids::{Incarnation, MemberId, PeerGroup, RunId, Serial, Time};
use crate::wire::control::{Down, OpName, Outcome, Up, VoteName};
use crate::wire::reason::{AbortReason, RequestCause};

/// The shadow.
#[derive(Default, Debug)]
pub(super) struct Watch {
    uses: BTreeMap<(RunId, PeerGroup, OpName), Use>,
    told: BTreeSet<(RunId, MemberId, Serial)>,
    votes: BTreeMap<(RunId, MemberId), (u32, VoteName)>,
    groups: BTreeMap<(RunId, PeerGroup), usize>,
    starts: BTreeMap<UseKey, Time>,
}

#[derive(Default, Debug)]
struct Use {
    opened: BTreeSet<MemberId>,
    done: BTreeSet<MemberId>,
}

/// Where masters are, and which of them a peer's name look-up gives.
#[derive(Default, Debug)]
pub(super) struct Directory {
    /// Masters that run: those whose run has a master of a later life behind that one, else oldest
    /// first.
    pub(super) masters: Vec<(ProcId, HostId, RunId)>,
    /// What the oracle calls each master that ever ran, and what it says of itself.
    lives: BTreeMap<ProcId, (RunId, (RunId, Incarnation))>,
    /// Masters that are to take a run over, as its next life.
    pub(super) heirs: BTreeMap<ProcId, (RunId, Incarnation)>,
    /// Whether look-ups give one or the other.
    pub(super) mixed: bool,
    /// Where to dial while none runs.
    pub(super) last: usize,
}

impl Directory {
    /// What a starting master says of itself.
    pub(super) fn life_of(&self, proc: ProcId, run: RunId) -> (RunId, Incarnation) {
        let heir = self.heirs.get(&proc).copied();
        heir.unwrap_or((run, Incarnation(1)))
    }

    /// A master runs.
    pub(super) fn add(
        &mut self,
        proc: ProcId,
        host: HostId,
        run: RunId,
        life: (RunId, Incarnation),
    ) {
        let at = match self.heirs.contains_key(&proc) {
            true => 0,
            false => self.masters.len(),
        };
        self.masters.insert(at, (proc, host, run));
        self.lives.insert(proc, (run, life));
    }

    /// The next life of a run whose master runs; none if it has one already.
    pub(super) fn next_life(&self, master: ProcId) -> Option<(RunId, Incarnation)> {
        let (_, (run, life)) = *self.lives.get(&master)?;
        let next = (run, Incarnation(life.0 + 1));
        let taken = self.heirs.values().any(|heir| *heir == next);
        (!taken).then_some(next)
    }
}

impl Core {
    /// Host that a peer dials for its master.
    pub(super) fn master_for(&mut self, proc: ProcId) -> HostId {
        let masters = &self.directory.masters;
        if self.directory.mixed && masters.len() > 1 {
            let at = self.rng.index(masters.len());
            return self.directory.masters[at].1;
        }
        let run = self.oracle.known.get(&proc).and_then(|k| k.member);
        masters
            .iter()
            .find(|m| run.is_some_and(|(run, _)| m.2 == run))
            .or_else(|| masters.first())
            .map_or_else(
                || HostId(self.scenario.master_host(self.directory.last)),
                |m| m.1,
            )
    }

    /// Run of the master at the other end of a connection.
    pub(super) fn run_at(&self, sock: Option<Sock>) -> Option<RunId> {
        let proc = self.net.proc_of(sock?.other())?;
        self.directory.lives.get(&proc).map(|(run, _)| *run)
    }

    /// An engine starts a use: what neighbours sent of it long before was held.
    pub(super) fn watch_start(&mut self, key: UseKey) {
        let now = self.now;
        let first = *self.watch.starts.entry(key).or_insert(now);
        let wide = self
            .scenario
            .latency
            .iter()
            .max()
            .copied()
            .unwrap_or_default();
        let travel = (wide + self.scenario.jitter + self.scenario.thread_delay) * 2;
        if now.since(first) > travel {
            self.cover(Cover::HeldOpen);
        }
    }

    /// A master reads a message. Gives the sender's process if this was the last DONE of a use.
    pub(super) fn watch_up(
        &mut self,
        run: RunId,
        conn: u32,
        member: Option<MemberId>,
        message: &Up,
    ) -> Option<ProcId> {
        let member = member?;
        let proc = *self.oracle.who.get(&(run, member))?;
        let group = self.oracle.known.get(&proc)?.group;
        match message {
            Up::Open(open) => {
                let entry = self.watch.uses.entry((run, group, open.op)).or_default();
                entry.opened.insert(member);
                None
            }
            Up::Done(done) => {
                let size = self.watch.groups.get(&(run, group)).copied();
                let entry = self.watch.uses.entry((run, group, done.op)).or_default();
                entry.done.insert(member);
                (Some(entry.done.len()) == size).then_some(proc)
            }
            Up::AbortRequest(request) => {
                if let RequestCause::LaneDied { .. } = request.cause {
                    self.cover(Cover::LaneDied);
                }
                None
            }
            Up::Vote(vote) => {
                self.watch.votes.insert((run, member), (conn, *vote));
                None
            }
            Up::Withdraw { .. } => {
                self.cover(Cover::WithdrawnVote);
                None
            }
            _ => None,
        }
    }

    /// A master sends a message.
    pub(super) fn watch_down(
        &mut self,
        run: RunId,
        conn: u32,
        member: Option<MemberId>,
        message: &Down,
    ) {
        let Some(member) = member else { return };
        let Some(proc) = self.oracle.who.get(&(run, member)) else {
            return;
        };
        let Some(group) = self.oracle.known.get(proc).map(|k| k.group) else {
            return;
        };
        match message {
            Down::Verdict(verdict) => {
                let first = self.watch.told.insert((run, member, verdict.serial));
                if !first {
                    self.cover(Cover::VerdictResent);
                }
                let entry = self.watch.uses.remove(&(run, group, verdict.op));
                match &verdict.outcome {
                    Outcome::Commit => {
                        let world = verdict.stamp.attributes.group_world_size as usize;
                        if entry.is_some_and(|e| e.opened.len() > world) {
                            self.cover(Cover::LossAllDone);
                        }
                    }
                    Outcome::Abort(AbortReason::StaleEpoch { .. }) if first => {
                        self.cover(Cover::OpenUnderStaleEpoch);
                    }
                    Outcome::Abort(_) => {}
                }
            }
            Down::Completed {
                vote, group: view, ..
            } => {
                self.watch.groups.insert((run, group), view.ring.len());
                if let Some((from, sent)) = self.watch.votes.remove(&(run, member))
                    && sent == *vote
                    && from != conn
                {
                    self.cover(Cover::CompletedResent);
                }
            }
            Down::Group(view) => {
                self.watch.groups.insert((run, group), view.ring.len());
            }
            _ => {}
        }
    }
}
