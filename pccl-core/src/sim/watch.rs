//! A shadow of what the masters are told and tell, to count situations and to find the moments at
//! which a fault does most harm. Judges nothing.

use std::collections::{BTreeMap, BTreeSet};

use super::core::{Core, HostId, ProcId};
use super::coverage::Cover;
use super::network::Sock;
use super::oracle::UseKey;
use crate::ids::{MemberId, PeerGroup, RunId, Serial, Time};
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
    /// Masters that run, oldest first.
    pub(super) masters: Vec<(ProcId, HostId, RunId)>,
    /// Whether look-ups give one or the other.
    pub(super) mixed: bool,
    /// Where to dial while none runs.
    pub(super) last: usize,
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
        let masters = &self.directory.masters;
        masters.iter().find(|m| m.0 == proc).map(|m| m.2)
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
