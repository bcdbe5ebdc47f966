//! Signs of life, in both directions, and standing still oneself. (Rules 14, 17)

use std::time::Duration;

use super::Master;
use super::loss::Departure;
use super::timers::Timer;
use crate::event::Event;
use crate::ids::{MemberId, Serial};
use crate::planted::{Bug, planted};
use crate::wire::control::Down;
use crate::wire::reason::LossCause;

/// Time between two warnings about the same call, after the first.
pub(super) const WARN_AGAIN: Duration = Duration::from_secs(60);

/// Most members that one heartbeat may vouch for: more neighbours than any plan has.
const HEARD_LIMIT: usize = 1_024;

impl Master {
    /// A heartbeat: has verdicts, and vouches for members that data came from.
    pub(super) fn heartbeat(&mut self, id: MemberId, quoted: Serial, heard: &[MemberId]) {
        self.acknowledged(id, quoted);
        for other in heard.iter().take(HEARD_LIMIT) {
            if self
                .same_group(id, *other)
                .is_some_and(|(_, members)| members)
                && let Some(node) = self.nodes.get_mut(other)
            {
                node.heard = self.now;
            }
        }
    }

    /// Somebody has sent something.
    pub(super) fn alive(&mut self, id: MemberId) {
        let Some(node) = self.nodes.get_mut(&id) else {
            return;
        };
        node.heard = self.now;
        self.may_answer(id);
    }

    /// Somebody has a connection from now on.
    pub(super) fn connected(&mut self, id: MemberId) {
        let due = self.now + self.config.timing.peer_timeout;
        self.timers.set(Timer::Silence(id), due);
        if !self.timers.is_set(Timer::Beat) {
            let due = self.now + self.config.timing.heartbeat;
            self.timers.set(Timer::Beat, due);
        }
    }

    /// Asks somebody for a word, unless it has been asked.
    pub(super) fn ping(&mut self, id: MemberId) {
        let now = self.now;
        let node = self.nodes.get_mut(&id).filter(|n| n.conn.is_some());
        if node.is_some_and(|n| n.round_trip.ask(now)) {
            self.send(id, Down::Ping);
        }
    }

    /// Somebody has answered a ping. If it is in doubt, that is the word that is waited for, unless
    /// the ping is older than the doubt.
    pub(super) fn ponged(&mut self, id: MemberId) {
        let now = self.now;
        let Some(node) = self.nodes.get_mut(&id) else {
            return;
        };
        let asked = node.round_trip.answered(now);
        let group = self.groups.get(&node.group);
        let Some(doubt) = group.and_then(|group| group.suspects.get(&id)) else {
            return;
        };
        if asked.is_some_and(|at| at >= doubt.since) {
            self.answered(id);
        } else {
            self.ping(id);
        }
    }

    /// Heartbeats are due.
    pub(super) fn beat(&mut self) {
        let here: Vec<MemberId> = self
            .nodes
            .iter()
            .filter(|(_, n)| n.conn.is_some())
            .map(|(id, _)| *id)
            .collect();
        if !self.nodes.is_empty() {
            let due = self.now + self.config.timing.heartbeat;
            self.timers.set(Timer::Beat, due);
        }
        for id in here {
            self.send(id, Down::Heartbeat);
            self.ping(id);
        }
    }

    /// Somebody may have been silent for too long.
    pub(super) fn silence_due(&mut self, id: MemberId) {
        let Some(node) = self.nodes.get(&id) else {
            return;
        };
        let due = node.heard + self.config.timing.peer_timeout;
        if due > self.now {
            self.timers.set(Timer::Silence(id), due);
        } else {
            self.lose(vec![(id, Departure::Lost(LossCause::Silent))], None);
        }
    }

    /// Restarts everybody's deadlines if this process stood still: it cannot tell their silence
    /// from its own deafness. The heartbeat timer bounds how late it can be otherwise.
    pub(super) fn notice_gap(&mut self) {
        let Some(due) = self.timers.next() else {
            return;
        };
        let gap = self.now.since(due);
        if gap <= self.config.timing.heartbeat || planted(Bug::GapIgnored) {
            return;
        }
        let now = self.now;
        self.patient_until = Some(now + self.config.timing.peer_timeout);
        let shift = |at: &mut crate::ids::Time| *at = *at + gap;
        for node in self.nodes.values_mut() {
            node.heard = now;
            if node.away.is_some() {
                node.away = Some(now);
                node.closed_by.values_mut().for_each(shift);
            }
        }
        let timers: Vec<Timer> = self.timers.all().collect();
        for timer in timers {
            match timer {
                Timer::Silence(_) => {
                    self.timers
                        .set(timer, now + self.config.timing.peer_timeout);
                }
                Timer::Away(id) => self.await_return(id),
                Timer::Edge(..) => self.timers.set(timer, now + self.edge_limit()),
                // What waits to be read must not see the same gap again.
                Timer::Beat | Timer::Probing(_) | Timer::Use(..) | Timer::Round | Timer::Query => {
                    self.timers.not_before(timer, now);
                }
            }
        }
        let gap_ms = u64::try_from(gap.as_millis()).unwrap_or(u64::MAX);
        self.event(Event::Stalled { gap_ms });
    }
}
