//! A simulated peer's connection to its master: dialled, greeted, read.

use super::clock::send_frame;
use super::core::Core;
use super::coverage::Cover;
use super::data_node::DataNode;
use super::invariants::highest_incarnation::answered;
use super::network::{Reading, Sock};
use super::peer_node::PeerNode;
use super::scenario::Moment;
use crate::error::{ConnectPhase, Error};
use crate::ids::{Incarnation, Round, RunId};
use crate::membership::peer::{MasterLink, PeerInput};
use crate::transport::admission::Admission;
use crate::types::UnanimousCall;
use crate::wire::control::{ControlHello, ControlReply, Down, Up};
use crate::wire::frame::{
    self, CONTROL_HELLO_LIMIT, Decoder, FRAME_LIMIT, Party, Preamble, VERSIONS,
};

/// The connection.
pub(super) struct Control {
    pub(super) sock: Sock,
    connected: bool,
    hello: Vec<u8>,
    run: Option<RunId>,
    stage: Stage,
    decoder: Decoder,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Preamble,
    Reply,
    Open,
}

impl PeerNode {
    /// The dial to the master has an answer.
    pub(super) fn control_dialled(&mut self, core: &mut Core, ok: bool) {
        let Some(control) = &mut self.control else {
            return;
        };
        if ok {
            control.connected = true;
            let hello = std::mem::take(&mut control.hello);
            core.write(control.sock, &hello);
        } else {
            core.close(control.sock);
            self.control = None;
            let error = unreachable(ConnectPhase::Dial, "connection refused");
            self.input(core, PeerInput::Master(MasterLink::Failed(error)));
        }
    }

    /// Sends to the master.
    pub(super) fn send(&mut self, core: &mut Core, message: &Up) {
        let Some(control) = &self.control else {
            core.violate(
                "one_answer",
                format!("{:?} sends without a connection", self.id),
            );
            return;
        };
        send_frame(core, control.sock, message, FRAME_LIMIT);
        match message {
            Up::Open(_) => core.moment(Moment::Opened, self.id),
            Up::Done(done) => {
                self.calls.sent_done(done.op);
                core.moment(Moment::Done, self.id);
            }
            Up::Vote(vote) => {
                self.calls.sent_vote(self.rounds, *vote);
                core.moment(Moment::Voted, self.id);
            }
            Up::Leave => {
                if let Some(known) = core.oracle.known.get_mut(&self.id) {
                    known.leaving = true;
                }
                if self.calls.ops_open() {
                    core.cover(Cover::LeftWithOps);
                }
            }
            Up::AbortRequest(request) => self.calls.sent_abort(request.op),
            _ => {}
        }
    }

    /// Dials the master, and says this.
    pub(super) fn dial_master(&mut self, core: &mut Core, hello: &ControlHello) {
        if let Some(old) = self.control.take() {
            core.close(old.sock);
        }
        let to = core.master_for(self.id);
        let sock = core.dial(self.id, self.host, to);
        let mut bytes = Preamble::dial(Party::Control).encode().to_vec();
        match frame::encode(hello, CONTROL_HELLO_LIMIT) {
            Ok(frame) => bytes.extend(frame),
            Err(error) => core.violate("bounded", format!("a hello cannot be sent: {error}")),
        }
        let run = match hello {
            ControlHello::Attach { run, .. } => Some(*run),
            _ => None,
        };
        self.control = Some(Control {
            sock,
            connected: false,
            hello: bytes,
            run,
            stage: Stage::Preamble,
            decoder: Decoder::new(FRAME_LIMIT),
        });
    }

    /// Reads what the master said.
    pub(super) fn read_control(&mut self, core: &mut Core) {
        let Some(control) = &mut self.control else {
            return;
        };
        if !control.connected {
            return;
        }
        let sock = control.sock;
        let (bytes, state) = core.read(sock, usize::MAX);
        control.decoder.feed(&bytes);
        if !bytes.is_empty() {
            self.master_heard = core.now;
        }
        loop {
            // The machine may have replaced or closed the connection meanwhile.
            let Some(control) = self.control.as_mut().filter(|c| c.sock == sock) else {
                return;
            };
            match control.next() {
                Ok(Some(news)) => self.news(core, news),
                Ok(None) => break,
                Err(cause) => return self.control_lost(core, &cause),
            }
        }
        match state {
            Reading::Open => {}
            Reading::Ended => self.control_lost(core, "the other end closed it"),
            Reading::Failed(cause) => self.control_lost(core, cause),
        }
    }

    fn control_lost(&mut self, core: &mut Core, cause: &str) {
        let Some(control) = self.control.take() else {
            return;
        };
        core.close(control.sock);
        let link = if control.stage == Stage::Open {
            MasterLink::Closed {
                cause: cause.into(),
            }
        } else {
            MasterLink::Failed(unreachable(ConnectPhase::Handshake, cause))
        };
        self.input(core, PeerInput::Master(link));
    }

    fn news(&mut self, core: &mut Core, news: News) {
        match news {
            News::Reply(reply) => {
                let life = self.life_of(&reply);
                let sock = self.control.as_ref().map(|control| control.sock);
                let member = self.machine.member_id().is_some();
                match &reply {
                    ControlReply::Registered { run, id, .. } => {
                        self.new_membership(core);
                        let run = core.run_at(sock).unwrap_or(*run);
                        self.member = Some((run, *id));
                        self.registrations += 1;
                        core.saw_registered(self.id, run, *id);
                        core.moment(Moment::Registered, self.id);
                    }
                    ControlReply::Attached { .. } => core.moment(Moment::Attached, self.id),
                    ControlReply::Evicted { .. } if self.other_master(core) => {
                        core.cover(Cover::TwoIncarnations);
                    }
                    _ => {}
                }
                self.input(core, PeerInput::Master(MasterLink::Reply(reply)));
                if let Some((run, incarnation)) = life {
                    let kept = self.control.as_ref().map(|control| control.sock) == sock;
                    let left = member && self.machine.member_id().is_none();
                    let highest = &mut self.highest;
                    let word = answered(highest, run, incarnation, kept || left);
                    let word = word.map_err(|what| format!("{:?} {what}", self.id));
                    core.judge("highest_incarnation", word);
                }
            }
            News::Message(message) => {
                match &message {
                    Down::Verdict(_) => core.moment(Moment::Verdict, self.id),
                    Down::Completed { vote, .. } => {
                        if vote.call != UnanimousCall::ArePeersPending {
                            self.rounds = Round(vote.round.0 + 1);
                        }
                        core.moment(Moment::Completed, self.id);
                    }
                    Down::Group(_) => core.moment(Moment::Group, self.id),
                    _ => {}
                }
                self.input(core, PeerInput::Message(message));
            }
        }
    }

    /// Another membership begins: nothing of an earlier one can disturb it.
    fn new_membership(&mut self, core: &mut Core) {
        self.data.end(core);
        self.collect(core);
        for lane in self.data.ended_lanes() {
            let closed = PeerInput::LaneClosed {
                lane,
                orderly: true,
                cause: "the membership has ended".into(),
            };
            self.input(core, closed);
        }
        self.data = DataNode::new(core, self.id, self.clock.of_thread(), self.shape.segment);
        for dialling in std::mem::take(&mut self.dialling).into_values() {
            core.close(dialling.sock);
        }
        self.admission = Admission::default();
    }

    fn other_master(&self, core: &Core) -> bool {
        let here = core.run_at(self.control.as_ref().map(|c| c.sock));
        self.member.is_some_and(|(run, _)| Some(run) != here)
    }

    /// Which life of which run's master a reply comes from, as it says.
    fn life_of(&self, reply: &ControlReply) -> Option<(RunId, Incarnation)> {
        match reply {
            ControlReply::Registered {
                run, incarnation, ..
            }
            | ControlReply::Evicted {
                run, incarnation, ..
            } => Some((*run, *incarnation)),
            ControlReply::Attached { incarnation, .. } => {
                Some((self.control.as_ref()?.run?, *incarnation))
            }
            ControlReply::Refused(_) | ControlReply::Status(_) | ControlReply::Admin(_) => None,
        }
    }
}

enum News {
    Reply(ControlReply),
    Message(Down),
}

impl Control {
    fn next(&mut self) -> Result<Option<News>, String> {
        if self.stage == Stage::Preamble {
            let Some(preamble) = self.decoder.preamble().map_err(|e| e.to_string())? else {
                return Ok(None);
            };
            preamble.chosen(VERSIONS).map_err(|e| e.to_string())?;
            self.stage = Stage::Reply;
        }
        if self.stage == Stage::Reply {
            let Some(reply) = self.decoder.message().map_err(|e| e.to_string())? else {
                return Ok(None);
            };
            self.stage = Stage::Open;
            return Ok(Some(News::Reply(reply)));
        }
        let message = self.decoder.message().map_err(|e| e.to_string())?;
        Ok(message.map(News::Message))
    }
}

fn unreachable(phase: ConnectPhase, cause: &str) -> Error {
    Error::Unreachable {
        address: "master".into(),
        phase,
        cause: cause.into(),
    }
}
