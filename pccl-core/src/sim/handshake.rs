//! First words between members, as the transport speaks them.

use super::clock::{host_of, send_frame};
use super::core::{Core, HostId, ProcId};
use super::network::{Reading, Sock};
use crate::ids::{MemberId, RunId, Time, Token};
use crate::transport::admission::{Admission, Judgement};
use crate::wire::control::MemberInfo;
use crate::wire::frame::{self, Decoder, PEER_HELLO_LIMIT, Party, Preamble, VERSIONS};
use crate::wire::lane::{PeerHello, PeerRefusal, PeerReply, Purpose};

/// What a handshake has come to.
pub(super) enum Step {
    /// More has to come.
    Wait,
    /// The lane is open.
    Open { peer: MemberId, wanted: u16 },
    /// It is over.
    Failed(String, Option<PeerRefusal>),
}

/// A handshake at the side that dialled.
pub(super) struct Dialling {
    pub(super) sock: Sock,
    pub(super) peer: MemberInfo,
    pub(super) deadline: Time,
    first: Vec<u8>,
    open: bool,
    greeted: bool,
    decoder: Decoder,
}

/// A handshake at the side that was dialled.
pub(super) struct Accepting {
    pub(super) sock: Sock,
    pub(super) deadline: Time,
    decoder: Decoder,
    greeted: bool,
    hello: Option<PeerHello>,
}

/// What a dialler says.
pub(super) fn hello(
    run: RunId,
    from: MemberId,
    to: MemberId,
    token: Token,
    wanted: u16,
) -> PeerHello {
    PeerHello {
        run,
        from,
        to,
        token,
        purpose: Purpose::Lane { wanted },
        round_trip: 0,
    }
}

impl Dialling {
    /// Dials a member; fails at once if it has no address.
    pub(super) fn start(
        core: &mut Core,
        proc: ProcId,
        host: HostId,
        peer: MemberInfo,
        deadline: Time,
        hello: impl FnOnce(MemberId) -> PeerHello,
    ) -> Result<Self, MemberId> {
        let Some(to) = peer.addresses.iter().find_map(|a| host_of(*a)) else {
            return Err(peer.id);
        };
        let mut first = Preamble::dial(Party::Peer).encode().to_vec();
        let frame = frame::encode(&hello(peer.id), PEER_HELLO_LIMIT);
        first.extend(frame.map_err(|_| peer.id)?);
        Ok(Self {
            sock: core.dial(proc, host, to),
            peer,
            deadline,
            first,
            open: false,
            greeted: false,
            decoder: Decoder::new(PEER_HELLO_LIMIT),
        })
    }

    /// The connection is there.
    pub(super) fn connected(&mut self, core: &mut Core) {
        self.open = true;
        core.write(self.sock, &self.first);
    }

    /// Reads what there is.
    pub(super) fn read(&mut self, core: &mut Core) -> Step {
        if !self.open {
            return Step::Wait;
        }
        let (bytes, state) = core.read(self.sock, usize::MAX);
        self.decoder.feed(&bytes);
        match self.next() {
            Ok(None) => ended(state),
            Ok(Some(PeerReply::Refused { reason })) => {
                Step::Failed(format!("refused: {reason:?}"), Some(reason))
            }
            Ok(Some(PeerReply::Welcome { token, wanted })) => {
                if token != self.peer.token {
                    return Step::Failed("it could not prove itself".into(), None);
                }
                // What follows belongs to the lane.
                let rest = std::mem::replace(&mut self.decoder, Decoder::new(PEER_HELLO_LIMIT));
                core.unread(self.sock, &rest.into_rest());
                Step::Open {
                    peer: self.peer.id,
                    wanted,
                }
            }
            Err(cause) => Step::Failed(cause, None),
        }
    }

    fn next(&mut self) -> Result<Option<PeerReply>, String> {
        if !self.greeted {
            let Some(preamble) = self.decoder.preamble().map_err(|e| e.to_string())? else {
                return Ok(None);
            };
            preamble.chosen(VERSIONS).map_err(|e| e.to_string())?;
            self.greeted = true;
        }
        self.decoder.message().map_err(|e| e.to_string())
    }
}

impl Accepting {
    /// A connection that has said nothing.
    pub(super) fn new(sock: Sock, deadline: Time) -> Self {
        Self {
            sock,
            deadline,
            decoder: Decoder::new(PEER_HELLO_LIMIT),
            greeted: false,
            hello: None,
        }
    }

    /// Reads what there is, and judges the dialler by the present table.
    pub(super) fn read(&mut self, core: &mut Core, table: &Admission, wanted: u16) -> Step {
        if self.hello.is_none() {
            let (bytes, state) = core.read(self.sock, usize::MAX);
            self.decoder.feed(&bytes);
            match self.next(core) {
                Ok(Some(hello)) => self.hello = Some(hello),
                Ok(None) => return ended(state),
                Err(cause) => return Step::Failed(cause, None),
            }
        }
        let Some(hello) = &self.hello else {
            return Step::Wait;
        };
        match table.judge(hello, None) {
            Judgement::Welcome(token) => {
                let Purpose::Lane { wanted: theirs } = hello.purpose else {
                    return Step::Failed("state is not served here".into(), None);
                };
                let peer = hello.from;
                let reply = PeerReply::Welcome { token, wanted };
                send_frame(core, self.sock, &reply, PEER_HELLO_LIMIT);
                let rest = std::mem::replace(&mut self.decoder, Decoder::new(PEER_HELLO_LIMIT));
                core.unread(self.sock, &rest.into_rest());
                Step::Open {
                    peer,
                    wanted: theirs,
                }
            }
            Judgement::Refuse(reason) => {
                send_frame(
                    core,
                    self.sock,
                    &PeerReply::Refused { reason },
                    PEER_HELLO_LIMIT,
                );
                Step::Failed("refused".into(), Some(reason))
            }
            Judgement::Wait(_) => match core.read(self.sock, 0).1 {
                Reading::Open => Step::Wait,
                state => ended(state),
            },
        }
    }

    /// The time is over: says what the table said last.
    pub(super) fn refuse(&mut self, core: &mut Core) {
        if self.hello.is_some() {
            let reason = PeerRefusal::Unknown;
            let reply = PeerReply::Refused { reason };
            send_frame(core, self.sock, &reply, PEER_HELLO_LIMIT);
        }
    }

    fn next(&mut self, core: &mut Core) -> Result<Option<PeerHello>, String> {
        if !self.greeted {
            let Some(preamble) = self.decoder.preamble().map_err(|e| e.to_string())? else {
                return Ok(None);
            };
            let (answer, chosen) = preamble.answer(VERSIONS, Party::Peer);
            core.write(self.sock, &answer.encode());
            chosen.map_err(|e| e.to_string())?;
            self.greeted = true;
        }
        self.decoder.message().map_err(|e| e.to_string())
    }
}

fn ended(state: Reading) -> Step {
    match state {
        Reading::Open => Step::Wait,
        Reading::Ended => Step::Failed("it closed the connection".into(), None),
        Reading::Failed(cause) => Step::Failed(cause.into(), None),
    }
}
