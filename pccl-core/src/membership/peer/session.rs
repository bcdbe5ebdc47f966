//! The control connection: dialled, kept alive, made again, given up. (Rules 3, 13, 14, 17)
//!
//! While a member has no connection it goes on moving data; what it would tell the master is
//! either in the report of the next hello or sent once that is answered. After the master limit
//! it has left the run.

use std::time::Duration;

use super::backoff::{Backoff, LONGEST};
use super::io::{MasterLink, PeerOutput};
use super::{Peer, Standing};
use crate::config::Timing;
use crate::error::{ConnectPhase, Error};
use crate::event::Event;
use crate::ids::{Incarnation, MemberId, RunId, Time, Token};
use crate::planted::{Bug, planted};
use crate::wire::control::{ControlHello, ControlReply, Registration, Report, RunParameters, Up};
use crate::wire::reason::RefuseReason;

/// State of the control connection.
#[derive(Clone, Debug, Default)]
pub(super) struct Session {
    link: Link,
    backoff: Backoff,
    /// Since when a registered peer has been without its master.
    away: Option<Time>,
    /// The run that this peer was last told of by a master, and the highest life of that master.
    run: Option<RunId>,
    incarnation: Incarnation,
}

/// The connection itself.
#[derive(Clone, Copy, Debug, Default)]
enum Link {
    /// None is wanted.
    #[default]
    Down,
    /// A dial has not been answered; it counts as failed at this time.
    Dialling(Time),
    /// The next dial is due at this time.
    Waiting(Time),
    /// Hello was answered.
    Open {
        since: Time,
        /// Last sign of life of the master.
        heard: Time,
        /// When to send the next heartbeat.
        beat: Time,
    },
}

/// Who this peer is in the run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Identity {
    pub(super) run: RunId,
    pub(super) id: MemberId,
    pub(super) token: Token,
}

impl Session {
    pub(super) fn is_open(&self) -> bool {
        matches!(self.link, Link::Open { .. })
    }

    /// Whether a registered peer is without its master.
    pub(super) fn is_away(&self) -> bool {
        self.away.is_some()
    }

    /// When the next deadline of the connection passes.
    pub(super) fn next_deadline(&self, timing: &Timing) -> Option<Time> {
        let link = match self.link {
            Link::Down => None,
            Link::Dialling(until) | Link::Waiting(until) => Some(until),
            Link::Open { heard, beat, .. } => Some(beat.min(heard + timing.peer_timeout)),
        };
        let limit = self
            .away
            .filter(|_| !planted(Bug::MasterLimitIgnored))
            .map(|since| since + timing.master_limit);
        link.into_iter().chain(limit).min()
    }

    /// The own loop stood still: nobody's silence meanwhile counts. (Rule 14)
    pub(super) fn restart(&mut self, timing: &Timing, now: Time) {
        match &mut self.link {
            Link::Down | Link::Waiting(_) => {}
            Link::Dialling(until) => *until = now + timing.peer_timeout / 2,
            Link::Open { heard, .. } => *heard = now,
        }
        if let Some(since) = &mut self.away {
            *since = now;
        }
    }

    /// A message came from the master.
    fn heard(&mut self, now: Time) {
        if let Link::Open { heard, .. } = &mut self.link {
            *heard = now;
        }
    }
}

impl Peer {
    /// Sends, if there is a connection. What must not be lost has its own record of whether the
    /// master was told.
    pub(super) fn send(&mut self, message: Up) {
        if self.session.is_open() {
            self.outputs.push_back(PeerOutput::Send(message));
        }
    }

    /// Dials the master: to register, or to come back.
    pub(super) fn dial_master(&mut self, now: Time) {
        let hello = match (&self.standing, self.identity) {
            (Standing::Joining(_), None) => ControlHello::Register(Registration {
                group: self.settings.group,
                name: self.settings.name.clone(),
                port: self.settings.own.port,
                addresses: self.settings.own.announce.clone(),
                arithmetic: crate::types::ARITHMETIC_VERSION,
            }),
            (standing, Some(Identity { run, id, token })) => {
                let newcomer = matches!(standing, Standing::Joining(_));
                let report = (!newcomer).then(|| Box::new(self.report()));
                ControlHello::Attach {
                    run,
                    id,
                    token,
                    report,
                }
            }
            _ => return,
        };
        self.session.link = Link::Dialling(now + self.dial_limit());
        self.outputs.push_back(PeerOutput::DialMaster { hello });
    }

    /// How long a dial may take. Who comes back has the peer time-out for that: one attempt that is
    /// swallowed on the way must leave time for another. (Rule 13)
    fn dial_limit(&self) -> Duration {
        match self.identity {
            Some(_) => self.timing.peer_timeout / 2,
            None => self.timing.dial(),
        }
    }

    /// The driver says what became of the connection.
    pub(super) fn on_master(&mut self, link: MasterLink, now: Time) {
        match (link, self.session.link) {
            (MasterLink::Reply(reply), Link::Dialling(_)) => self.on_reply(reply, now),
            (MasterLink::Failed(error), Link::Dialling(_)) => self.dial_failed(error, now),
            (MasterLink::Closed { cause }, Link::Dialling(_)) => {
                self.dial_failed(self.bad_handshake(cause), now);
            }
            (MasterLink::Closed { cause }, Link::Open { .. }) => self.link_lost(cause, now),
            // Of a connection that this side has already replaced or closed.
            _ => {}
        }
    }

    /// A message from the master arrived.
    pub(super) fn on_heard(&mut self, now: Time) {
        self.session.heard(now);
    }

    /// Closes the connection, or gives up dialling.
    pub(super) fn close_master(&mut self) {
        if !matches!(self.session.link, Link::Down | Link::Waiting(_)) {
            self.outputs.push_back(PeerOutput::CloseMaster);
        }
        self.session.link = Link::Down;
        self.session.away = None;
        self.session.backoff = Backoff::default();
    }

    /// Deadlines of the connection.
    pub(super) fn session_due(&mut self, now: Time) {
        if let Some(since) = self.session.away
            && now >= since + self.timing.master_limit
            && !planted(Bug::MasterLimitIgnored)
        {
            self.master_lost(now.since(since), now);
            return;
        }
        match self.session.link {
            Link::Dialling(until) if until <= now => {
                self.outputs.push_back(PeerOutput::CloseMaster);
                self.dial_failed(self.bad_handshake("no answer".into()), now);
            }
            Link::Waiting(until) if until <= now => self.dial_master(now),
            Link::Open { heard, .. } if heard + self.timing.peer_timeout <= now => {
                self.outputs.push_back(PeerOutput::CloseMaster);
                let silence = now.since(heard);
                self.link_lost(format!("no word for {silence:?}"), now);
            }
            Link::Open { since, heard, beat } if beat <= now => {
                self.session.link = Link::Open {
                    since,
                    heard,
                    beat: now + self.timing.heartbeat,
                };
                let heard = std::mem::take(&mut self.heard).into_iter().collect();
                self.send(Up::Heartbeat {
                    quoted: self.ops.quoted(),
                    heard,
                });
            }
            _ => {}
        }
    }

    /// No verdict, or no master, for the master limit: this peer has left. (Rule 5)
    pub(super) fn master_lost(&mut self, waited: Duration, now: Time) {
        let address = self.settings.master_address.clone();
        self.leave_run(Error::MasterLost { address, waited }, now);
    }

    fn on_reply(&mut self, reply: ControlReply, now: Time) {
        let joining = self.identity.is_none();
        match reply {
            ControlReply::Registered {
                run,
                incarnation,
                id,
                token,
                parameters,
            } if joining => {
                if self.is_outdated(run, incarnation) {
                    return self.outdated(incarnation, now);
                }
                let id = match self.before {
                    Some(before) if planted(Bug::RejoinAsOld) => before.id,
                    _ => id,
                };
                let identity = Identity { run, id, token };
                self.identity = Some(identity);
                self.before = Some(identity);
                self.session.run = Some(run);
                self.link_open(incarnation, parameters, now);
                self.outputs.push_back(PeerOutput::Event(Event::Registered {
                    member: id,
                    name: self.settings.name.clone(),
                    group: self.settings.group,
                }));
                self.reconcile(now);
            }
            ControlReply::Attached {
                incarnation,
                parameters,
            } if !joining => {
                let run = self.identity.map_or_else(RunId::default, |own| own.run);
                if self.is_outdated(run, incarnation) {
                    return self.outdated(incarnation, now);
                }
                let away = self
                    .session
                    .away
                    .map_or(Duration::ZERO, |since| now.since(since));
                self.link_open(incarnation, parameters, now);
                self.extend_limits(away.min(self.timing.master_limit), now);
                if let Some(member) = self.own_id() {
                    self.outputs
                        .push_back(PeerOutput::Event(Event::Attached { member }));
                }
                // What happened since the report was made.
                self.tell_operations();
                self.tell_votes();
                self.tell_edges();
            }
            ControlReply::Refused(RefuseReason::Stopping) if !joining => self.on_stopping(now),
            ControlReply::Refused(reason) => {
                let address = self.settings.master_address.clone();
                self.outputs.push_back(PeerOutput::Event(Event::Refused {
                    name: self.settings.name.clone(),
                    reason: reason.clone(),
                }));
                let stopping = reason == RefuseReason::Stopping;
                let refused = Error::Refused { address, reason };
                let error = match &self.standing {
                    Standing::Joining(joining) if stopping => joining.told(refused),
                    _ => refused,
                };
                self.leave_run(error, now);
            }
            ControlReply::Evicted {
                run,
                incarnation,
                reason,
            } => match self.is_outdated(run, incarnation) {
                true => self.outdated(incarnation, now),
                false => {
                    // A master that says so is met, too: an earlier life is not joined after this.
                    self.session.run = Some(run);
                    self.session.incarnation = incarnation;
                    self.on_evicted(reason, now);
                }
            },
            ControlReply::Registered { .. }
            | ControlReply::Attached { .. }
            | ControlReply::Status(_)
            | ControlReply::Admin(_) => {
                self.outputs.push_back(PeerOutput::CloseMaster);
                self.dial_failed(
                    self.bad_handshake("an answer to another question".into()),
                    now,
                );
            }
        }
    }

    fn link_open(&mut self, incarnation: Incarnation, parameters: RunParameters, now: Time) {
        self.timing = timing(parameters);
        self.session.incarnation = incarnation;
        self.session.away = None;
        self.session.link = Link::Open {
            since: now,
            heard: now,
            beat: now + self.timing.heartbeat,
        };
    }

    /// The connection broke: dials again, at once if it had lasted.
    fn link_lost(&mut self, cause: String, now: Time) {
        if let Link::Open { since, .. } = self.session.link {
            self.session.backoff.broke_after(now.since(since));
        }
        self.session.link = Link::Down;
        if matches!(self.standing, Standing::Leaving(_)) {
            // Leaving never waits for a master that is away.
            self.left(now);
            return;
        }
        if let Some(member) = self.own_id() {
            self.outputs
                .push_back(PeerOutput::Event(Event::Detached { member, cause }));
        }
        self.session.away = Some(now);
        self.dial_later(now);
    }

    fn dial_failed(&mut self, error: Error, now: Time) {
        self.session.link = Link::Down;
        if self.identity.is_none() && self.join_failed(&error, now) {
            return;
        }
        self.dial_later(now);
    }

    fn dial_later(&mut self, now: Time) {
        // Several tries must fit into the peer time-out, which is what there is to come back.
        let longest = LONGEST.min(self.timing.heartbeat);
        let wait = self.session.backoff.next(longest, &mut self.random);
        if wait.is_zero() {
            self.dial_master(now);
        } else {
            self.session.link = Link::Waiting(now + wait);
        }
    }

    /// Peers obey the highest life of their run's master only. Another run counts anew.
    fn is_outdated(&self, run: RunId, incarnation: Incarnation) -> bool {
        self.session.run == Some(run)
            && incarnation < self.session.incarnation
            && !planted(Bug::OldIncarnationObeyed)
    }

    fn outdated(&mut self, incarnation: Incarnation, now: Time) {
        self.outputs.push_back(PeerOutput::CloseMaster);
        let highest = self.session.incarnation;
        let cause = format!("an outdated master answered ({incarnation}, not {highest})");
        self.dial_failed(self.bad_handshake(cause), now);
    }

    fn bad_handshake(&self, cause: String) -> Error {
        Error::Unreachable {
            address: self.settings.master_address.clone(),
            phase: ConnectPhase::Handshake,
            cause,
        }
    }

    /// What a member brings when it comes back.
    fn report(&mut self) -> Report {
        Report {
            incarnation: self.session.incarnation,
            known: self.known.epoch,
            shown: self.shown.epoch(),
            round: self.votes.round(),
            queries: self.votes.queries(),
            quoted: self.ops.quoted(),
            ops: self.ops.report(),
            vote: self.votes.report(),
            closed: self.edges.report_closed(),
        }
    }

    /// Limits of calls do not run while the master is away. (Rule 17)
    fn extend_limits(&mut self, away: Duration, now: Time) {
        self.ops.extend(away, now);
        self.votes.extend(away, now);
        if let Standing::Joining(joining) = &mut self.standing {
            joining.deadline = joining.deadline.map(|deadline| deadline + away);
        }
    }
}

/// Time limits of the run. A zero would make machines spin.
pub(crate) fn timing(parameters: RunParameters) -> Timing {
    let millis = |ms: u32| Duration::from_millis(u64::from(ms.max(1)));
    Timing {
        heartbeat: millis(parameters.heartbeat_ms),
        peer_timeout: millis(parameters.peer_timeout_ms),
        master_limit: millis(parameters.master_limit_ms),
    }
}
