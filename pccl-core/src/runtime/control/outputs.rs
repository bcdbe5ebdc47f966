//! Carries out what the peer machine says, and tells it what came of it.

use std::collections::VecDeque;

use super::calls::Ending;
use super::driver::{Data, Driver};
use super::lanes::Opened;
use super::link::LinkEvent;
use crate::collective::engine::{EngineConfig, EngineEvent, EngineGroup, StartReduce};
use crate::error::Error;
use crate::event::Event;
use crate::ids::CallId;
use crate::membership::peer::{MasterLink, PeerInput, PeerOutput, timing};
use crate::runtime::calls::lock;
use crate::runtime::data::{DataEvent, DataThread};
use crate::runtime::log;
use crate::runtime::sync::Task;
use crate::transport::admission::Admission;
use crate::transport::handshake::Dial;
use crate::transport::listener::Accepted;
use crate::transport::secure::Room;
use crate::wire::control::{ControlReply, Outcome, RunParameters, SyncPlan};
use crate::wire::lane::Purpose;
use crate::wire::reason::RequestCause;

impl Driver {
    /// Carries out one output. What the machine must hear of at once is added to `inputs`.
    pub(super) fn carry_out(&mut self, output: PeerOutput, inputs: &mut VecDeque<PeerInput>) {
        match output {
            PeerOutput::DialMaster { hello } => self.link.dial(hello, self.timing),
            PeerOutput::Send(message) => inputs.extend(self.link.send(&message)),
            PeerOutput::CloseMaster => self.link.close(self.timing.handshake()),
            PeerOutput::DialPeer {
                peer,
                run,
                own,
                token,
            } => {
                let dial = Dial {
                    peer,
                    run,
                    own,
                    token,
                    purpose: self.lanes.purpose(),
                    party: self.lanes.party(),
                };
                self.lanes.dial(dial, self.timing);
            }
            PeerOutput::Admit {
                own,
                peers,
                readers,
                keys,
            } => {
                self.own = own;
                self.lanes.admit(Admission {
                    own,
                    peers: peers.into_iter().collect(),
                    readers: readers.into_iter().collect(),
                    keys: keys.into_iter().collect(),
                    ..Admission::default()
                });
            }
            PeerOutput::CloseLane { lane } => self.with_data(|data| data.close_lane(lane)),
            PeerOutput::StartReduce {
                call,
                op,
                quoted,
                descriptor,
                group,
                own,
            } => {
                let start = StartReduce {
                    call,
                    op,
                    quoted,
                    descriptor,
                    group,
                    own,
                };
                inputs.extend(self.start(start));
            }
            PeerOutput::StartSync { call, plan } => self.start_sync(call, plan),
            PeerOutput::Finish {
                call,
                op,
                outcome,
                stamp,
                ..
            } => {
                let commit = matches!(outcome, Ok(Outcome::Commit));
                let ending = Ending {
                    key: op.key,
                    outcome,
                    stamp,
                };
                self.show();
                if self.calls.ending(call, ending) {
                    self.with_data(|data| data.finish(call, commit));
                }
            }
            PeerOutput::Group { group, shown } => {
                let mut snapshot = lock(&self.shared.snapshot);
                snapshot.ring.clone_from(&group.ring);
                snapshot.reached.retain(|id, _| group.rank(*id).is_some());
                drop(snapshot);
                self.with_data(|data| data.set_group(EngineGroup { view: group, shown }));
            }
            PeerOutput::Complete { call, result } => {
                self.show();
                self.left |= self.calls.complete(call, result);
            }
            PeerOutput::Event(event) => self.tell(&event),
        }
    }

    fn tell(&self, event: &Event) {
        log::at_peer(self.own_id(), &self.config.name, event);
        self.shared.subscribers.publish(event);
    }

    fn with_data(&self, f: impl FnOnce(&DataThread)) {
        if let Some(data) = &self.data {
            f(&data.thread);
        }
    }

    /// Lends a call's buffers to the data thread. A use that cannot be started has failed.
    fn start(&mut self, start: StartReduce) -> Option<PeerInput> {
        let StartReduce {
            call, op, quoted, ..
        } = start;
        let failed = |what: &str| {
            Some(PeerInput::OpFailed {
                op,
                quoted,
                cause: RequestCause::Internal { what: what.into() },
            })
        };
        let Some(data) = &self.data else {
            return failed("no thread to move its data");
        };
        match self.calls.lend(call) {
            Some(lent) => {
                data.thread.start_reduce(start, lent);
                None
            }
            None => failed("no buffers came with it"),
        }
    }

    /// Passes the master's plan on to the user's thread.
    fn start_sync(&self, call: CallId, plan: SyncPlan) {
        if let (Some(control), Some((run, own, token))) = (self.calls.sync(call), self.own) {
            control.plan(Task {
                plan,
                run,
                own,
                token,
                timing: self.timing,
                packs: self.config.compress_state,
                party: self.lanes.party(),
            });
        }
    }

    /// Passes a reader of state on to the user's thread. Without a synchronisation it has come
    /// too late, and finds its connection closed.
    fn serve(&self, accepted: Accepted) {
        let Accepted {
            channel,
            hello,
            slot,
            ..
        } = accepted;
        if let (Some(control), Ok(parts)) = (self.calls.any_sync(), channel.into_parts(Room::SERVE))
        {
            control.serve(parts, hello.from, slot);
        }
    }

    /// Something happened on the control connection.
    pub(super) fn link_event(&mut self, generation: u64, event: LinkEvent) {
        let Some(input) = self.link.event(generation, event) else {
            return;
        };
        match &input {
            PeerInput::Master(MasterLink::Reply(ControlReply::Registered {
                parameters, ..
            })) => {
                self.parameters(parameters);
                self.new_membership();
            }
            PeerInput::Master(MasterLink::Reply(ControlReply::Attached { parameters, .. })) => {
                self.parameters(parameters);
            }
            _ => {}
        }
        self.input(input);
    }

    fn parameters(&mut self, parameters: &RunParameters) {
        self.timing = timing(*parameters);
        lock(&self.shared.snapshot).digests = parameters.digests;
    }

    /// Every membership has a data thread of its own: nothing of an earlier one can disturb it.
    fn new_membership(&mut self) {
        self.end_data();
        self.lanes.new_membership();
        for lane in self.lanes.take_open() {
            self.input(PeerInput::LaneClosed {
                lane,
                orderly: true,
                cause: "the membership has ended".into(),
            });
        }
        let config = EngineConfig {
            segment: self.config.segment,
            protected: self.lanes.party().is_some(),
            timing: self.timing,
            ..EngineConfig::default()
        };
        let (says, events) = tokio::sync::mpsc::unbounded_channel();
        match DataThread::start(config, says) {
            Ok(thread) => self.data = Some(Data { thread, events }),
            Err(cause) => {
                // A member that moves no data would only be in the others' way.
                let cause = format!("the system refused the thread that moves data: {cause}");
                self.abandon(&Error::Internal(cause));
            }
        }
    }

    /// Somebody has dialled this member, and was let in.
    pub(super) fn accepted(&mut self, accepted: Accepted) {
        let (peer, remote) = (accepted.hello.from, accepted.remote);
        // It was let in by the proof of a membership that may have ended on its way here.
        let meant = Some((accepted.hello.run, accepted.hello.to));
        if self.own.map(|(run, own, _)| (run, own)) != meant {
            return;
        }
        tracing::trace!(target: "pccl::peer", %peer, %remote, "accepted a connection");
        match accepted.hello.purpose {
            Purpose::Lane { wanted } => {
                let opened = self.lanes.accepted(accepted, wanted);
                self.lane(opened);
            }
            Purpose::State => self.serve(accepted),
        }
    }

    /// A connection between members is past its handshake.
    pub(super) fn lane(&mut self, mut opened: Opened) {
        let Some(lane) = self.lanes.register(&mut opened) else {
            return;
        };
        let Opened {
            channel,
            peer,
            address,
            dialled,
            wanted,
            round_trip,
            ..
        } = opened;
        let Some(data) = &self.data else {
            self.lanes.closed(lane);
            return;
        };
        match channel.into_parts(Room::LANE) {
            Ok(parts) => data.thread.open_lane(lane, peer, parts),
            Err(cause) => {
                tracing::warn!(target: "pccl::peer", %peer, phase = "lane", %cause, "lane lost");
                self.lanes.closed(lane);
                return;
            }
        }
        lock(&self.shared.snapshot).reached.insert(peer, address);
        self.input(PeerInput::LaneOpen {
            lane,
            peer,
            dialled,
            wanted,
            round_trip,
        });
    }

    /// The data thread has something to say; nothing means that it is gone.
    pub(super) fn data_event(&mut self, event: Option<DataEvent>) {
        let Some(event) = event else {
            // It ends by itself only if it panics.
            let error = Error::Internal("the data thread panicked; this peer has left".into());
            self.abandon(&error);
            return;
        };
        match event {
            DataEvent::Engine(EngineEvent::Done { op, quoted, result }) => {
                self.input(PeerInput::OpDone { op, quoted, result });
            }
            DataEvent::Engine(EngineEvent::FirstSegmentSent { op, .. }) => {
                self.tell(&Event::FirstSegmentSent { op });
            }
            DataEvent::Engine(EngineEvent::Failed { op, quoted, cause }) => {
                self.input(PeerInput::OpFailed { op, quoted, cause });
            }
            DataEvent::Finished { call, stats } => {
                self.show();
                self.calls.released(call, stats);
            }
            DataEvent::LaneClosed {
                lane,
                orderly,
                cause,
            } => {
                self.lanes.closed(lane);
                self.input(PeerInput::LaneClosed {
                    lane,
                    orderly,
                    cause,
                });
            }
            DataEvent::Heard(members) => self.input(PeerInput::Heard(members)),
            DataEvent::Engine(_) => {}
        }
    }
}
