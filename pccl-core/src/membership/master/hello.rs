//! First words: registering, coming back, asking for the status. (Rules 3, 13, 15)

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::groups::Group;
use super::members::Node;
use super::timers::Timer;
use super::uses::UseId;
use super::{Master, MasterOutput};
use crate::event::Event;
use crate::ids::{ConnId, Incarnation, MemberId, PublicKey, RunId, Serial, Token};
use crate::planted::{Bug, planted};
use crate::wire::control::{
    AbortRequest, ControlHello, ControlReply, Done, Down, Registration, Report, RunParameters,
};
use crate::wire::reason::{AbortReason, EvictReason, RefuseReason, shortened};

impl Master {
    pub(super) fn hello(
        &mut self,
        conn: ConnId,
        remote: SocketAddr,
        hello: ControlHello,
        key: Option<PublicKey>,
    ) {
        if self.connections.contains_key(&conn) {
            // A connection says hello once.
            return;
        }
        match hello {
            ControlHello::Register(registration) => {
                self.register(conn, remote, registration, key);
            }
            ControlHello::Attach {
                run,
                id,
                token,
                report,
            } => self.attach(conn, remote, run, (id, token, key), report),
            ControlHello::Status => {
                let status = serde_json::to_string(&self.status()).unwrap_or_default();
                self.reply_and_close(conn, ControlReply::Status(status));
            }
            // Its door answers before that, where there is one.
            ControlHello::Admin(_) => {
                let what = "this run has no tickets to administer".to_owned();
                self.reply_and_close(conn, ControlReply::Admin(Err(what)));
            }
        }
    }

    /// Somebody wants to join. Its registration is its vote for the round that admits it.
    fn register(
        &mut self,
        conn: ConnId,
        remote: SocketAddr,
        registration: Registration,
        key: Option<PublicKey>,
    ) {
        let limit = self.config.limits.members;
        let run = self.arithmetic.filter(|_| !self.nodes.is_empty());
        let reason = match run {
            Some(run) if run != registration.arithmetic => Some(RefuseReason::Arithmetic { run }),
            _ if self.nodes.len() >= usize::try_from(limit).unwrap_or(usize::MAX) => {
                Some(RefuseReason::Full { limit })
            }
            _ => None,
        };
        if let Some(reason) = reason {
            let name = shortened(registration.name);
            self.event(Event::Refused {
                name,
                reason: reason.clone(),
            });
            return self.reply_and_close(conn, ControlReply::Refused(reason));
        }
        self.arithmetic = Some(registration.arithmetic);
        self.last_id += 1;
        let id = MemberId(self.last_id);
        let token = self.token();
        let number = registration.group;
        let node = Node::new(registration, remote, (token, key), conn, self.now);
        let name = node.name.clone();
        self.nodes.insert(id, node);
        self.connections.insert(conn, id);
        self.connected(id);
        let epoch = self.world.past_epoch;
        let group = self.groups.entry(number).or_insert_with(|| Group {
            epoch,
            ..Group::default()
        });
        group.newcomers.insert(id);
        self.event(Event::Registered {
            member: id,
            name,
            group: number,
        });
        self.output(MasterOutput::Reply {
            conn,
            reply: ControlReply::Registered {
                run: self.run,
                incarnation: self.incarnation,
                id,
                token,
                parameters: self.parameters(),
            },
        });
        self.ping(id);
        self.begin_probing(id);
        self.probe(id);
        self.consider(number, [id].into());
    }

    /// Somebody comes back.
    fn attach(
        &mut self,
        conn: ConnId,
        remote: SocketAddr,
        run: RunId,
        (id, token, key): (MemberId, Token, Option<PublicKey>),
        report: Option<Box<Report>>,
    ) {
        let met = report.as_ref().map_or(Incarnation(0), |r| r.incarnation);
        let is_it = |node: &Node| node.token == token && node.key == key;
        let known = run == self.run && self.nodes.get(&id).is_some_and(is_it);
        if met > self.incarnation {
            // Rule 3: only one master may decide. Only who proves that it is of this run is
            // believed that there is another.
            if self.last_id == 0 {
                self.incarnation = Incarnation(met.0.saturating_add(1));
            } else if known {
                return self.end(format!("a master of a later life ({met}) has taken over"));
            }
        }
        if !known {
            let reason = match run == self.run {
                true => self.departed.reason(id, token),
                false => EvictReason::UnknownMember,
            };
            let reply = ControlReply::Evicted {
                run: self.run,
                incarnation: self.incarnation,
                reason,
            };
            return self.reply_and_close(conn, reply);
        }
        let now = self.now;
        let Some(node) = self.nodes.get_mut(&id) else {
            return;
        };
        let (number, accepted) = (node.group, node.accepted);
        let moved = node.moved_to(remote.ip());
        let old = node.conn.replace(conn);
        node.heard = now;
        node.away = None;
        node.round_trip.restart();
        self.timers.cancel(Timer::Away(id));
        if let Some(old) = old.filter(|_| !planted(Bug::OldConnectionRead)) {
            self.connections.remove(&old);
            self.output(MasterOutput::Close { conn: old });
        }
        self.connections.insert(conn, id);
        self.connected(id);
        self.event(Event::Attached { member: id });
        self.output(MasterOutput::Reply {
            conn,
            reply: ControlReply::Attached {
                incarnation: self.incarnation,
                parameters: self.parameters(),
            },
        });
        self.ping(id);
        self.forget_dead_reports(id);
        match (accepted, report) {
            (true, Some(report)) => self.brought(id, *report),
            (true, None) => self.admission_missed(id),
            (false, _) => self.replan(number),
        }
        self.edges_again(id);
        self.answered(id);
        if moved && accepted {
            // Rule 1: an address is part of what an epoch stands for.
            let opened = self.stamp(number).epoch;
            let mut present = opened;
            present.0 += 1;
            let reason = AbortReason::StaleEpoch { opened, present };
            self.regroup([(number, reason)].into(), None);
        }
    }

    /// A newcomer comes back as a member: it missed its admission. (Rule 15)
    fn admission_missed(&mut self, id: MemberId) {
        let Some(number) = self.group_of(id) else {
            return;
        };
        if planted(Bug::AdmissionLost) {
            return;
        }
        self.admitted_again(id);
        let view = self.group_view(number);
        if self.last_epoch(number) != Some(view.epoch) {
            self.send(id, Down::Group(view));
        }
    }

    /// A member tells what it knows, and gets what it missed: of its operations the verdicts, of
    /// its vote the result, and the present view. (Rule 13)
    fn brought(&mut self, id: MemberId, report: Report) {
        let Some(number) = self.group_of(id) else {
            return;
        };
        if report.ops.len() > self.config.limits.uses.saturating_mul(2) {
            return self.protocol(id, "a report of more operations than may be open");
        }
        self.acknowledged(id, report.quoted);
        self.resolved(id, &report);
        let behind = report.round < self.votes.round;
        let present = self.group_view(number);
        // Before verdicts: a member that is shown an epoch must know its members. But a round that
        // it missed is older still.
        if !behind && report.known != present.epoch {
            self.send(id, Down::Group(present));
        }
        // Verdicts that were given come first, in their order, then what is still open.
        let uses = self.groups.get(&number).map(|g| &g.uses);
        let given = |index: usize| {
            let open = &report.ops.get(index)?.open;
            let entry = uses?.get(uses?.find(open.op, open.quoted)?)?;
            entry.verdict.as_ref().map(|verdict| verdict.serial)
        };
        let mut order: Vec<(bool, Serial, usize)> = (0..report.ops.len())
            .map(|i| (given(i).is_none(), given(i).unwrap_or_default(), i))
            .collect();
        order.sort();
        for (_, _, index) in order {
            let Some(op) = report.ops.get(index) else {
                continue;
            };
            let (name, quoted) = (op.open.op, op.open.quoted);
            self.open(id, op.open.clone());
            if let Some(result) = op.done {
                let op = name;
                self.done(id, Done { op, quoted, result });
            }
            if let Some(cause) = op.abort.clone() {
                let op = name;
                self.abort_request(id, AbortRequest { op, quoted, cause });
            }
        }
        for peer in report.closed.iter().take(super::NAMED) {
            self.lanes_closed(id, *peer);
        }
        let stored = self.last_epoch(number);
        if let Some(vote) = report.vote {
            self.vote(id, vote.vote);
            if let Some(cause) = vote.withdrawn {
                self.withdraw(id, vote.vote, cause);
            }
        }
        let view = self.group_view(number);
        if behind && stored != Some(view.epoch) {
            self.send(id, Down::Group(view));
        }
    }

    /// A member has the verdicts on all uses that it does not say it waits in.
    fn resolved(&mut self, id: MemberId, report: &Report) {
        let (Some(node), Some(number)) = (self.nodes.get(&id), self.group_of(id)) else {
            return;
        };
        let Some(group) = self.groups.get(&number) else {
            return;
        };
        let waits = report.ops.iter();
        let waits: BTreeMap<Option<UseId>, ()> = waits
            .map(|op| (group.uses.find(op.open.op, op.open.quoted), ()))
            .collect();
        let over: Vec<(Serial, UseId)> = node
            .unacked
            .iter()
            .copied()
            .filter(|(_, u)| !waits.contains_key(&Some(*u)))
            .collect();
        for (needed, use_id) in over {
            if let Some(node) = self.nodes.get_mut(&id) {
                node.unacked.remove(&(needed, use_id));
            }
            self.has_verdict(number, use_id, id);
        }
    }

    fn parameters(&self) -> RunParameters {
        let ms = |d: std::time::Duration| u32::try_from(d.as_millis()).unwrap_or(u32::MAX);
        let timing = &self.config.timing;
        RunParameters {
            heartbeat_ms: ms(timing.heartbeat),
            peer_timeout_ms: ms(timing.peer_timeout),
            master_limit_ms: ms(timing.master_limit),
            digests: self.config.digests,
        }
    }
}
