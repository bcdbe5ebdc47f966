//! What goes into the peer machine, and what comes out.

use std::net::SocketAddr;
use std::time::Duration;

use crate::error::Error;
use crate::event::Event;
use crate::ids::{CallId, Digest, Epoch, LaneId, MemberId, PublicKey, RunId, Serial, Tag, Token};
use crate::types::{ReduceDescriptor, StateOffer, UnanimousCall};
use crate::wire::control::{
    ControlHello, ControlReply, Down, GroupView, MemberInfo, OpName, Outcome, Stamp, SyncPlan, Up,
};
use crate::wire::lane::PeerRefusal;
use crate::wire::reason::RequestCause;

/// Something that happened.
#[derive(Clone, Debug)]
pub enum PeerInput {
    /// The user wants something. Every call is answered exactly once: a use of a key that was
    /// opened by one [`PeerOutput::Finish`], everything else by one [`PeerOutput::Complete`].
    Call {
        /// Numbered by the driver, never reused.
        call: CallId,
        /// What the user wants.
        request: Request,
        /// Longest time that the call may take before an abort is asked for; time in which the
        /// master is away does not count. Of a call that joins: longest time until this peer is
        /// admitted; without one, the first dial of the master that fails ends the call, but
        /// once registered it waits without limit. (Rule 17)
        limit: Option<Duration>,
    },
    /// The user gives a call up: asks for an abort; the call completes with the verdict. (Rule 5)
    Cancel {
        /// Which call.
        call: CallId,
        /// Cancelled, or destroyed.
        cause: RequestCause,
    },
    /// The dial asked for by [`PeerOutput::DialMaster`] has an answer, or has failed.
    Master(MasterLink),
    /// A message from the master.
    Message(Down),
    /// A connection between members opened, in either direction, after its handshake.
    LaneOpen {
        /// Numbered by the driver, never reused.
        lane: LaneId,
        /// Who is at the other end.
        peer: MemberId,
        /// Whether this side dialled.
        dialled: bool,
        /// Connections per edge that the other end wants; zero: as many as the path can use.
        wanted: u16,
        /// How long the connection took to open, if this side dialled.
        round_trip: Duration,
    },
    /// A lane closed.
    LaneClosed {
        /// Which.
        lane: LaneId,
        /// Whether the other end said goodbye first, or this end closed it.
        orderly: bool,
        /// What the socket said.
        cause: String,
    },
    /// A dial asked for by [`PeerOutput::DialPeer`] failed, at all addresses.
    DialFailed {
        /// Whom.
        peer: MemberId,
        /// Each address with what it said.
        cause: String,
        /// What the other side said, if it answered.
        refusal: Option<PeerRefusal>,
    },
    /// The engine holds all of the result, and the OPEN of every plan neighbour. Or, for a
    /// synchronisation, all that the plan asked for has been fetched and verified.
    OpDone {
        /// Which use.
        op: OpName,
        /// As it was opened.
        quoted: Serial,
        /// Digest of the result.
        result: Digest,
    },
    /// The engine cannot go on with a use.
    OpFailed {
        /// Which use.
        op: OpName,
        /// As it was opened.
        quoted: Serial,
        /// Why.
        cause: RequestCause,
    },
    /// The user's call of a collective that failed has returned: only now has its user been shown
    /// the world sizes after the failure. (Rule 16)
    Shown {
        /// Which call; one of an earlier membership means nothing any more.
        call: CallId,
        /// As in its [`PeerOutput::Finish`].
        stamp: Stamp,
    },
    /// Data came from these members since the last of these events. (Rule 14)
    Heard(Vec<MemberId>),
    /// Time has passed.
    Tick,
}

/// What a user asks for.
#[derive(Clone, Debug)]
pub enum Request {
    /// Join the run.
    Connect,
    /// A unanimous call. [`UnanimousCall::UpdateTopology`] on an evicted peer joins again.
    /// (Rule 18)
    Vote(UnanimousCall),
    /// An all-reduce. The driver keeps the buffers, under the same call number.
    Reduce {
        /// The user's tag.
        tag: Tag,
        /// What to do.
        descriptor: ReduceDescriptor,
    },
    /// A synchronisation of the shared state. The driver keeps the tensors.
    Sync(StateOffer),
    /// Leave the run: open operations are cancelled for all, naming the leaver. Completes when
    /// the master has said goodbye, is away, or the goodbye deadline has passed.
    Leave,
}

/// What became of a dial to the master.
#[derive(Clone, Debug)]
pub enum MasterLink {
    /// It is open: the hello of [`PeerOutput::DialMaster`] was sent, and this came back.
    Reply(ControlReply),
    /// It could not be opened, or closed before the answer.
    Failed(Error),
    /// It was open and closed.
    Closed {
        /// What the socket or the decoder said.
        cause: String,
    },
}

/// Something to do.
#[derive(Clone, PartialEq, Debug)]
pub enum PeerOutput {
    /// Dial the master and say this. An earlier connection, if any, is closed, an earlier dial is
    /// given up, and nothing of them comes in any more. (Rule 13)
    DialMaster {
        /// First words.
        hello: ControlHello,
    },
    /// Send to the master, on the connection that is open.
    Send(Up),
    /// Close the connection to the master after what was sent on it has been written, or give up
    /// dialling it. Nothing of it comes in any more.
    CloseMaster,
    /// Dial a member, at each of its addresses in turn until one answers: one connection. Is
    /// answered by one [`PeerInput::LaneOpen`] or [`PeerInput::DialFailed`], within the limit of
    /// a handshake for each address.
    DialPeer {
        /// Whom, where, and what it must prove itself with.
        peer: MemberInfo,
        /// The run it must be in.
        run: RunId,
        /// Own number.
        own: MemberId,
        /// Own proof.
        token: Token,
    },
    /// Whom to let in when they dial (replaces the last list), and who the own process is.
    Admit {
        /// The run; none while not registered: nobody is let in.
        own: Option<(RunId, MemberId, Token)>,
        /// Members and newcomers that may open lanes.
        peers: Vec<(MemberId, Token)>,
        /// Members that may read state. (Rule 21)
        readers: Vec<(MemberId, Token)>,
        /// Keys that the master vouches for; of nobody in a run without tickets.
        keys: Vec<(MemberId, PublicKey)>,
    },
    /// Close a lane in good order (after what is written or half written on it).
    CloseLane {
        /// Which.
        lane: LaneId,
    },
    /// Start a use in the engine.
    StartReduce {
        /// The user's call, by which the driver finds the buffers.
        call: CallId,
        /// Which use.
        op: OpName,
        /// Goes into the OPEN on the lanes.
        quoted: Serial,
        /// What to do.
        descriptor: ReduceDescriptor,
        /// Order of the ring, epoch and members that the plan is made from.
        group: GroupView,
        /// Own number.
        own: MemberId,
    },
    /// Fetch and serve state. Comes again for the same call when the master changes the plan: what
    /// has been fetched stays, seeders and readers are replaced.
    StartSync {
        /// The user's call, by which the driver finds the tensors.
        call: CallId,
        /// What to do.
        plan: SyncPlan,
    },
    /// A use has its verdict: let go of the buffers (restore them on abort), then let the user's
    /// call return with this result. Uses that were never started in the engine come here too.
    Finish {
        /// The user's call.
        call: CallId,
        /// Which use.
        op: OpName,
        /// As it was opened.
        quoted: Serial,
        /// What the master decided; an error if no verdict will come.
        outcome: Result<Outcome, Error>,
        /// World sizes that hold from now on (a committed collective leaves them as they are, rule
        /// 16), and whether newcomers were waiting when the verdict was given.
        stamp: Stamp,
    },
    /// The group is this now: lanes to others than its members carry nothing any more, and OPENs
    /// of older epochs are dropped.
    Group {
        /// The group, as last heard of.
        group: GroupView,
        /// The epoch last shown to the user.
        shown: Epoch,
    },
    /// A call that is not an operation has its result.
    Complete {
        /// Which.
        call: CallId,
        /// The answer; what it means depends on the request.
        result: Result<Answer, Error>,
    },
    /// Something worth telling people.
    Event(Event),
}

/// Answer to a call.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// Done: connected, updated, left.
    Done(Stamp),
    /// Whether newcomers wait.
    Pending(bool),
}

/// Where the own process is to be dialled, for the registration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnAddresses {
    /// Port that it listens on.
    pub port: u16,
    /// Addresses to announce before the one that the master sees.
    pub announce: Vec<SocketAddr>,
}
