//! Messages between master and peers, after the connection is open.
//!
//! Every message is one frame (see [`super::frame`]); the body is the message in postcard's
//! encoding. Which rule of agreement a field serves is said beside it.

use std::net::SocketAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::reason::{AbortReason, EvictReason, LossCause, RequestCause};
use crate::ids::{
    ContentDigest, Digest, Epoch, Incarnation, MemberId, PeerGroup, PublicKey, Round, RunId,
    Serial, Token, ViewId,
};
use crate::types::{
    Attributes, Choice, DigestKind, OpKey, ReduceDescriptor, StateOffer, UnanimousCall,
};

/// Name of one use of an operation's key. (Rule 2)
///
/// Two committed uses can bear the same name; the serial of the last verdict that its sender had
/// when it opened the use (`quoted`, beside every name) tells them apart.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct OpName {
    /// Unanimous calls completed when it was opened.
    pub round: Round,
    /// What the user calls it.
    pub key: OpKey,
    /// Aborted uses of the key since that call.
    pub attempt: u32,
}

/// Peer to master: a use of a key begins here.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Open {
    /// Which use.
    pub op: OpName,
    /// Epoch of the group as last shown to the user by a verdict. (Rule 1)
    pub epoch: Epoch,
    /// Last verdict that the sender had when it opened the use.
    pub quoted: Serial,
    /// What it does; compared by the master.
    pub what: OpBody,
}

/// What an operation does, in full, so that a mismatch can be named.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum OpBody {
    /// An all-reduce.
    Reduce {
        /// Compared in full.
        descriptor: ReduceDescriptor,
        /// Digest of descriptor, algorithm, wire format and arithmetic version.
        digest: Digest,
    },
    /// A synchronisation of the shared state.
    Sync(StateOffer),
}

/// Peer to master: the sender holds all of the result, and the OPEN of every plan neighbour.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Done {
    /// Which use.
    pub op: OpName,
    /// As in its [`Open`].
    pub quoted: Serial,
    /// Digest of the result.
    pub result: Digest,
}

/// Peer to master: the sender wants the use to end. The master decides. (Rule 5)
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AbortRequest {
    /// Which use.
    pub op: OpName,
    /// As in its [`Open`].
    pub quoted: Serial,
    /// Why.
    pub cause: RequestCause,
}

/// Which try at which unanimous call. Calls that complete no round are counted by themselves, from
/// zero again after every completed round, so that a newcomer knows the count: no query can be
/// open when a round completes, since every member has voted for the round.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct VoteName {
    /// The call. Update and optimise share their counting, the query has its own.
    pub call: UnanimousCall,
    /// Rounds completed before it; of queries: queries completed since the last completed round.
    pub round: Round,
    /// Failed tries at it (of queries: at this query). A vote for a try that has failed already is
    /// answered with its [`Down::Failed`]. (Rule 1)
    pub tries: u32,
}

/// State of one operation as a member brings it back. (Rule 13)
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OpReport {
    /// As it was opened.
    pub open: Open,
    /// Its result, if it has one.
    pub done: Option<Digest>,
    /// Its request to end it, if it made one.
    pub abort: Option<RequestCause>,
}

/// What a member brings when it comes back, to the same master or another one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Report {
    /// Highest incarnation that it obeys. (Rule 3)
    pub incarnation: Incarnation,
    /// Group epoch last heard of.
    pub known: Epoch,
    /// Group epoch last shown to its user.
    pub shown: Epoch,
    /// Rounds completed, as far as it knows; its last round's result is of this round.
    pub round: Round,
    /// Queries completed since that round, as far as it knows.
    pub queries: Round,
    /// Last verdict it has.
    pub quoted: Serial,
    /// Operations that it waits in, in the order in which they were opened.
    pub ops: Vec<OpReport>,
    /// The unanimous call that it waits in.
    pub vote: Option<VoteReport>,
    /// Members whose lanes it has seen close and not come back.
    pub closed: Vec<MemberId>,
}

/// A vote as a member brings it back.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VoteReport {
    /// Which call, round and try.
    pub vote: VoteName,
    /// Its request to take it back, if it made one.
    pub withdrawn: Option<RequestCause>,
}

/// Peer to master.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Up {
    /// Sent once per heartbeat interval.
    Heartbeat {
        /// Last verdict received; acknowledges all up to it.
        quoted: Serial,
        /// Members that data came from since the last heartbeat. (Rule 14)
        heard: Vec<MemberId>,
    },
    /// Begins a use of a key.
    Open(Open),
    /// The result is there.
    Done(Done),
    /// Asks for an abort.
    AbortRequest(AbortRequest),
    /// Votes for a unanimous call.
    Vote(VoteName),
    /// Takes a vote back: the try fails for all voters, unless the round is complete already.
    Withdraw {
        /// Which vote.
        vote: VoteName,
        /// Why.
        cause: RequestCause,
    },
    /// All lanes to a member closed. Sent at once. (Rule 13)
    LanesClosed {
        /// Whose.
        peer: MemberId,
        /// What the socket said.
        cause: String,
    },
    /// A lane to a member is open (again): takes back [`Up::LanesClosed`], and proves the edge.
    LanesOpen {
        /// Whose.
        peer: MemberId,
    },
    /// The sender, whose part it is to dial, cannot; the other end may try. (Rules 12, 15)
    CannotDial {
        /// Whom.
        peer: MemberId,
        /// Each address with what it said.
        cause: String,
    },
    /// Leaves the run. Answered by [`Down::Goodbye`].
    Leave,
    /// Answers a [`Down::Ping`], at once.
    Pong,
}

/// A member as others need to know it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MemberInfo {
    /// Its number.
    pub id: MemberId,
    /// What the operators call it.
    pub name: String,
    /// Where it listens, best first.
    pub addresses: Vec<SocketAddr>,
    /// Proves it to the members of its group.
    pub token: Token,
    /// Its key, which the master vouches for; none in a run without tickets.
    pub key: Option<PublicKey>,
}

/// One group at one epoch.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct GroupView {
    /// Of the group.
    pub epoch: Epoch,
    /// Members in the order of the ring: each sends to the next, the last to the first. A member's
    /// place in it is its rank.
    pub ring: Vec<MemberInfo>,
    /// Which algorithms its edges allow, and which one goes with which size. (Rule 10)
    pub choice: Choice,
}

impl GroupView {
    /// Place of a member in the ring.
    pub fn rank(&self, id: MemberId) -> Option<usize> {
        self.ring.iter().position(|m| m.id == id)
    }
}

/// What every verdict and result is stamped with: equal at all members of a group. (Rule 16)
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Stamp {
    /// Orders stamps: attributes are those of the highest view seen, and never go back.
    pub view: ViewId,
    /// Epoch of the member's group.
    pub epoch: Epoch,
    /// World sizes.
    pub attributes: Attributes,
    /// Whether newcomers wait for admission.
    pub pending: bool,
}

/// How a use of a key ended, for all of its group.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Outcome {
    /// Every surviving member holds the result.
    Commit,
    /// Nobody has it.
    Abort(AbortReason),
}

/// The master's word on one use of a key.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Verdict {
    /// Which use; together with `serial`, see [`OpName`].
    pub op: OpName,
    /// When, in the order of verdicts.
    pub serial: Serial,
    /// How it ended.
    pub outcome: Outcome,
    /// State of the run at that moment.
    pub stamp: Stamp,
}

/// One tensor to fetch.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct FetchEntry {
    /// Which tensor.
    pub key: String,
    /// Digest that its content must have; none where members may differ.
    pub digest: Option<ContentDigest>,
}

/// What a member has to do for a synchronisation to complete.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SyncPlan {
    /// Which use.
    pub op: OpName,
    /// As in the member's [`Open`]: which of the uses of that name.
    pub quoted: Serial,
    /// Revision that the state has afterwards.
    pub revision: u64,
    /// What to fetch; empty for who is up to date.
    pub fetch: Arc<Vec<FetchEntry>>,
    /// Members that serve it.
    pub seeders: Vec<MemberInfo>,
    /// Members that may ask this one for chunks while its call lasts, with what proves them.
    pub readers: Vec<(MemberId, Token)>,
}

/// Master to peer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Down {
    /// Sent once per heartbeat interval.
    Heartbeat,
    /// Decides a use of a key.
    Verdict(Verdict),
    /// The own group changed. Lanes follow it at once, users see it with the next verdict.
    Group(GroupView),
    /// A round or a query is complete. To a newcomer: it is admitted; the first of these that it
    /// gets is that of the round that admitted it, whatever call the round was for. (Rule 15)
    Completed {
        /// Which; `round` is the number before it.
        vote: VoteName,
        /// State of the run after it.
        stamp: Stamp,
        /// The own group after it (of a query: as it is).
        group: GroupView,
    },
    /// A try at a unanimous call failed, for all; who had not voted yet fails at once at that
    /// try. (Rule 5)
    Failed {
        /// Which.
        vote: VoteName,
        /// Why.
        reason: AbortReason,
        /// State of the run at that moment.
        stamp: Stamp,
    },
    /// What to do in a synchronisation.
    SyncPlan(SyncPlan),
    /// Edges to try: dial these. (Rule 15)
    Dial {
        /// Each must be dialled until it answers, the dial deadline passes, or it is called off.
        peers: Vec<MemberInfo>,
    },
    /// Members and newcomers that may dial this one although they are not in its group's view
    /// yet; replaces the last list.
    Expect {
        /// Who, and what proves them.
        peers: Vec<MemberInfo>,
    },
    /// The receiver is no member any more, or, before its admission, is turned down.
    Evicted(EvictReason),
    /// A use was not taken up: too many of the group are open or remembered. Its call fails at the
    /// receiver alone, as if it had not been made. (Rule 2)
    TooMany {
        /// Which use.
        op: OpName,
        /// As in its [`Open`].
        quoted: Serial,
        /// Uses that are open or remembered.
        held: u32,
    },
    /// Answers [`Up::Leave`]: lanes may be closed.
    Goodbye,
    /// The master stops in good order; all calls fail. (Rule 17)
    Stopping,
    /// Who the operation waits for, so that warnings and time-outs can name them.
    Waiting {
        /// Which use.
        op: OpName,
        /// Members that have not opened it.
        not_opened: Vec<MemberId>,
        /// Members that have opened it and are not done.
        not_done: Vec<MemberId>,
    },
    /// Who a unanimous call waits for. (Rule 17)
    WaitingForVotes {
        /// The receiver's vote.
        vote: VoteName,
        /// Members that have not voted.
        missing: Vec<MemberId>,
    },
    /// Asks for an [`Up::Pong`]: measures the round trip, and tells whether who is complained about
    /// lives. One is under way at a time. (Rules 12, 13)
    Ping,
}

/// Parameters of the run, set at the master and the same for all.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RunParameters {
    /// Time between heartbeats, in milliseconds.
    pub heartbeat_ms: u32,
    /// Silence after which a member or the master counts as lost, in milliseconds.
    pub peer_timeout_ms: u32,
    /// How long peers go on without the master, in milliseconds.
    pub master_limit_ms: u32,
    /// Digests of the shared state.
    pub digests: DigestKind,
}

/// What comes before the hello inside TLS: that the dialler holds a ticket of the run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TicketProof {
    /// Which of the master's invitations the ticket is of.
    pub invitation: u32,
    /// Made from the ticket's secret and this very TLS session; of no use in any other.
    pub proof: [u8; 32],
}

/// What an operator wants of a master that gives tickets. Only who shows the master's own key, as who
/// has its file can, is listened to.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum AdminRequest {
    /// Invitations, bans and allowed keys, without secrets.
    List,
    /// A new invitation; the answer is its ticket.
    Invite(Invite),
    /// Takes an invitation back. Who has joined with it stays.
    Revoke {
        /// Its number.
        invitation: u32,
    },
    /// Puts out who is in, and lets nobody in, with these keys or from these addresses.
    Ban {
        /// A key, the first eight characters of one or more, an address, or a network
        /// (`address/bits`).
        whom: String,
        /// For how long; for good without.
        seconds: Option<u64>,
    },
    /// Lifts a ban.
    Unban {
        /// As it was banned.
        whom: String,
    },
    /// While any keys are allowed, others are not let in, whatever ticket they show.
    Allow {
        /// Which key.
        key: PublicKey,
        /// Whether to put it on the list, or take it off.
        allowed: bool,
    },
}

/// What an invitation is good for.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Invite {
    /// For so many different keys; any number without.
    pub uses: Option<u32>,
    /// For how long; for good without.
    pub seconds: Option<u64>,
    /// For this key alone.
    pub key: Option<PublicKey>,
}

/// First words of a peer to the master.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ControlHello {
    /// Wants to join.
    Register(Registration),
    /// Was a member, or a newcomer, and comes back.
    Attach {
        /// Of which run.
        run: RunId,
        /// As whom.
        id: MemberId,
        /// Proof.
        token: Token,
        /// What it brings; a newcomer that has not been admitted brings none.
        report: Option<Box<Report>>,
    },
    /// Asks for the status of the run (JSON text), and is closed after the answer.
    Status,
    /// An operator's wish; closed after the answer.
    Admin(AdminRequest),
}

/// Who wants to join.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Registration {
    /// Group to join.
    pub group: PeerGroup,
    /// What the operators shall call it.
    pub name: String,
    /// Port it listens on; the master adds the address that it sees.
    pub port: u16,
    /// Addresses it is to be dialled at, before the one that the master sees.
    pub addresses: Vec<SocketAddr>,
    /// Version of the arithmetic; must be the run's.
    pub arithmetic: u32,
}

/// The master's answer to a [`ControlHello`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ControlReply {
    /// Registered. Admission comes with [`Down::Completed`].
    Registered {
        /// The run.
        run: RunId,
        /// The master's life.
        incarnation: Incarnation,
        /// The newcomer's number.
        id: MemberId,
        /// Its proof.
        token: Token,
        /// Of the run.
        parameters: RunParameters,
    },
    /// Attached again; what was missed follows.
    Attached {
        /// The master's life.
        incarnation: Incarnation,
        /// Of the run.
        parameters: RunParameters,
    },
    /// Turned down.
    Refused(super::reason::RefuseReason),
    /// No member any more.
    Evicted {
        /// The run of the master that answers.
        run: RunId,
        /// Its life: one that has been replaced is not believed. (Rule 3)
        incarnation: Incarnation,
        /// Why.
        reason: EvictReason,
    },
    /// Status of the run as JSON text.
    Status(String),
    /// What became of an operator's wish: for people.
    Admin(Result<String, String>),
}

/// A loss as the log and the events tell it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Loss {
    /// Who.
    pub member: MemberId,
    /// How.
    pub cause: LossCause,
}
