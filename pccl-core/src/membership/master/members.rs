//! What the master knows of one member or newcomer, and of those that are gone.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::uses::UseId;
use crate::ids::{ConnId, MemberId, PeerGroup, PublicKey, Serial, Time, Token};
use crate::wire::control::{MemberInfo, Registration};
use crate::wire::reason::EvictReason;

/// Longest name kept, in characters: enough for a host and a process, short enough for every
/// message that carries it.
const NAME_LIMIT: usize = 128;

/// Most addresses kept of those that a peer announces; each costs a dialler a time-out.
const ADDRESS_LIMIT: usize = 8;

/// Round trip assumed while none has been measured: between continents.
const ROUND_TRIP_UNKNOWN: Duration = Duration::from_millis(100);

/// Departed members whose reason is remembered, to be told when they come back.
const DEPARTED_LIMIT: usize = 1_024;

/// A member, or a newcomer.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) group: PeerGroup,
    pub(super) name: String,
    announced: Vec<SocketAddr>,
    seen: SocketAddr,
    pub(super) token: Token,
    /// What it proves itself with on every connection, in a run with tickets.
    pub(super) key: Option<PublicKey>,
    pub(super) accepted: bool,
    /// The control connection; none while it is away.
    pub(super) conn: Option<ConnId>,
    /// Last sign of life.
    pub(super) heard: Time,
    /// Since when it has no connection.
    pub(super) away: Option<Time>,
    /// Members whose lanes to it all closed, and when they said so.
    pub(super) closed_by: BTreeMap<MemberId, Time>,
    /// Members about which it has said so.
    pub(super) reported: BTreeSet<MemberId>,
    /// Other ends of the edges that the table of edges has.
    pub(super) edges: BTreeSet<MemberId>,
    /// Other members and newcomers of the group that a lane has been made to, and not been found
    /// impossible since.
    pub(super) proven: BTreeSet<MemberId>,
    /// A newcomer counts as pending before this only when it has tried its edges.
    pub(super) probing_until: Time,
    /// Whom it was last told to expect.
    pub(super) expected: BTreeSet<MemberId>,
    /// Verdicts that it was sent, each with what it must quote to acknowledge it.
    pub(super) unacked: BTreeSet<(Serial, UseId)>,
    pub(super) round_trip: RoundTrip,
}

impl Node {
    pub(super) fn new(
        registration: Registration,
        remote: SocketAddr,
        (token, key): (Token, Option<PublicKey>),
        conn: ConnId,
        now: Time,
    ) -> Self {
        let mut announced = registration.addresses;
        announced.truncate(ADDRESS_LIMIT);
        Self {
            group: registration.group,
            name: registration.name.chars().take(NAME_LIMIT).collect(),
            announced,
            seen: SocketAddr::new(remote.ip(), registration.port),
            token,
            key,
            accepted: false,
            conn: Some(conn),
            heard: now,
            away: None,
            closed_by: BTreeMap::new(),
            reported: BTreeSet::new(),
            edges: BTreeSet::new(),
            proven: BTreeSet::new(),
            probing_until: now,
            expected: BTreeSet::new(),
            unacked: BTreeSet::new(),
            round_trip: RoundTrip::default(),
        }
    }

    /// As others are told of it: what it announced, then where it is seen.
    pub(super) fn info(&self, id: MemberId) -> MemberInfo {
        let mut addresses = self.announced.clone();
        if !addresses.contains(&self.seen) {
            addresses.push(self.seen);
        }
        MemberInfo {
            id,
            name: self.name.clone(),
            addresses,
            token: self.token,
            key: self.key,
        }
    }

    /// Where its control connection comes from.
    pub(super) fn seen_at(&self) -> IpAddr {
        self.seen.ip()
    }

    /// Where its control connection comes from now. Returns whether that is another address.
    pub(super) fn moved_to(&mut self, ip: IpAddr) -> bool {
        let moved = self.seen.ip() != ip;
        self.seen.set_ip(ip);
        moved
    }

    /// Its name with its address, for people.
    pub(super) fn label(&self) -> String {
        match self.name.is_empty() {
            true => format!("at {}", self.seen),
            false => format!("{} at {}", self.name, self.seen),
        }
    }
}

/// A bound on a member's round trip, from how long its answers to pings take: their smoothed mean and
/// four times their smoothed deviation, as TCP computes its retransmission time-out (RFC 6298,
/// section 2). On a path whose delay varies a member is given the time that it may well need.
#[derive(Debug, Default)]
pub(super) struct RoundTrip {
    asked: Option<Time>,
    /// Mean and deviation.
    smoothed: Option<(Duration, Duration)>,
}

impl RoundTrip {
    /// Whether to send a ping: one is under way at a time.
    pub(super) fn ask(&mut self, now: Time) -> bool {
        let ask = self.asked.is_none();
        self.asked.get_or_insert(now);
        ask
    }

    /// A ping was answered. When it was sent; none if there was none.
    pub(super) fn answered(&mut self, now: Time) -> Option<Time> {
        let at = self.asked.take()?;
        let sample = now.since(at);
        self.smoothed = Some(match self.smoothed {
            None => (sample, sample / 2),
            Some((mean, deviation)) => {
                let off = mean.abs_diff(sample);
                ((mean * 7 + sample) / 8, (deviation * 3 + off) / 4)
            }
        });
        Some(at)
    }

    /// The connection is another one; what was sent may be lost.
    pub(super) fn restart(&mut self) {
        self.asked = None;
    }

    /// How long answers take on the average; none if there was none yet.
    pub(super) fn mean(&self) -> Option<Duration> {
        self.smoothed.map(|(mean, _)| mean)
    }

    pub(super) fn bound(&self) -> Duration {
        self.smoothed
            .map_or(ROUND_TRIP_UNKNOWN, |(mean, deviation)| mean + deviation * 4)
    }
}

/// Why those that are gone are gone, for when they come back.
#[derive(Debug, Default)]
pub(super) struct Departed {
    entries: VecDeque<(MemberId, Token, EvictReason)>,
}

impl Departed {
    pub(super) fn add(&mut self, id: MemberId, token: Token, reason: EvictReason) {
        if self.entries.len() >= DEPARTED_LIMIT {
            self.entries.pop_front();
        }
        self.entries.push_back((id, token, reason));
    }

    /// What to tell whoever says it is `id`. The reason is for who can prove it.
    pub(super) fn reason(&self, id: MemberId, token: Token) -> EvictReason {
        self.entries
            .iter()
            .rev()
            .find(|(i, t, _)| *i == id && *t == token)
            .map_or(EvictReason::UnknownMember, |(_, _, reason)| reason.clone())
    }
}
