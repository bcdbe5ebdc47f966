//! Who is let in when it dials.

use std::collections::{BTreeMap, BTreeSet};

use tokio::sync::watch;
use tokio::time::Instant;

use crate::ids::{MemberId, PublicKey, RunId, Token};
use crate::wire::lane::{PeerHello, PeerRefusal, Purpose};

/// Who the own process is, and who may open connections to it. Replaced as a whole whenever the
/// peer machine says so; handshakes in progress look at the newest.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Admission {
    /// Run, own number and own proof; none while not registered.
    pub(crate) own: Option<(RunId, MemberId, Token)>,
    /// Members and newcomers that may open lanes.
    pub(crate) peers: BTreeMap<MemberId, Token>,
    /// Members that may read state. (Rule 21)
    pub(crate) readers: BTreeMap<MemberId, Token>,
    /// Keys that the master vouches for; of nobody in a run without tickets.
    pub(crate) keys: BTreeMap<MemberId, PublicKey>,
    /// The last ones that were in an earlier table and are in none any more. Numbers are given once.
    pub(crate) former: BTreeSet<MemberId>,
}

/// What a table says to a hello.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Judgement {
    /// Let it in, and show it this.
    Welcome(Token),
    /// No later table can let it in.
    Refuse(PeerRefusal),
    /// A later table may: the dialler may have heard from the master before this member did. If
    /// none comes in time, this is what to say. (Rule 1)
    Wait(PeerRefusal),
}

impl Admission {
    /// The table that comes after `last`: who was in it and is not any more is refused at once, and
    /// not waited for.
    pub(crate) fn after(mut self, last: &Self) -> Self {
        if last.own == self.own {
            self.former.clone_from(&last.former);
            self.former.extend(last.peers.keys());
            self.former.retain(|id| !self.peers.contains_key(id));
            while self.former.len() > FORMER {
                self.former.pop_first();
            }
        }
        self
    }

    /// Whether to let a dialler in, who has proven to have this key if it came inside TLS.
    pub(crate) fn judge(&self, hello: &PeerHello, key: Option<PublicKey>) -> Judgement {
        let Some((run, own, token)) = self.own else {
            return Judgement::Wait(PeerRefusal::NotMe);
        };
        if hello.run != run || hello.to < own {
            return Judgement::Refuse(PeerRefusal::NotMe);
        }
        if hello.to > own {
            // Numbers grow: this process may be about to learn that it has joined anew.
            return Judgement::Wait(PeerRefusal::NotMe);
        }
        let (table, refusal) = match hello.purpose {
            Purpose::Lane { .. } => (&self.peers, PeerRefusal::Unknown),
            Purpose::State => (&self.readers, PeerRefusal::NoSync),
        };
        let is_it = key.is_none_or(|key| self.keys.get(&hello.from) == Some(&key));
        match table.get(&hello.from) {
            Some(expected) if *expected == hello.token && is_it => Judgement::Welcome(token),
            Some(_) => Judgement::Refuse(PeerRefusal::Unknown),
            None if self.former.contains(&hello.from) => Judgement::Refuse(refusal),
            None => Judgement::Wait(refusal),
        }
    }
}

/// Judges a dialler by the newest table, at the latest when `deadline` has come.
pub(crate) async fn admit(
    table: &mut watch::Receiver<Admission>,
    hello: &PeerHello,
    key: Option<PublicKey>,
    deadline: Instant,
) -> Result<Token, PeerRefusal> {
    loop {
        let judgement = table.borrow_and_update().judge(hello, key);
        match judgement {
            Judgement::Welcome(token) => return Ok(token),
            Judgement::Refuse(refusal) => return Err(refusal),
            Judgement::Wait(refusal) => {
                let changed = tokio::time::timeout_at(deadline, table.changed()).await;
                if !matches!(changed, Ok(Ok(()))) {
                    return Err(refusal);
                }
            }
        }
    }
}

/// Former members that are remembered.
const FORMER: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: (RunId, MemberId, Token) = (RunId(1), MemberId(5), Token(50));

    fn table() -> Admission {
        Admission {
            own: Some(OWN),
            peers: BTreeMap::from([(MemberId(6), Token(60))]),
            readers: BTreeMap::from([(MemberId(7), Token(70))]),
            keys: BTreeMap::from([(MemberId(6), PublicKey([6; 32]))]),
            former: BTreeSet::new(),
        }
    }

    fn hello(from: u64, token: u128, purpose: Purpose) -> PeerHello {
        PeerHello {
            round_trip: 0,
            run: OWN.0,
            from: MemberId(from),
            to: OWN.1,
            token: Token(token),
            purpose,
        }
    }

    const LANE: Purpose = Purpose::Lane { wanted: 1 };

    #[test]
    fn only_those_in_the_table_with_their_token_come_in() {
        let judge = |h: &PeerHello| table().judge(h, None);
        assert_eq!(judge(&hello(6, 60, LANE)), Judgement::Welcome(OWN.2));
        assert_eq!(
            judge(&hello(6, 61, LANE)),
            Judgement::Refuse(PeerRefusal::Unknown)
        );
        assert_eq!(
            judge(&hello(8, 80, LANE)),
            Judgement::Wait(PeerRefusal::Unknown)
        );
        assert_eq!(
            judge(&hello(7, 70, Purpose::State)),
            Judgement::Welcome(OWN.2)
        );
        assert_eq!(
            judge(&hello(6, 60, Purpose::State)),
            Judgement::Wait(PeerRefusal::NoSync)
        );
    }

    #[test]
    fn inside_tls_the_key_must_be_the_one_that_the_master_vouches_for() {
        let judge = |from, token, key| {
            let hello = hello(from, token, LANE);
            table().judge(&hello, Some(PublicKey([key; 32])))
        };
        assert_eq!(judge(6, 60, 6), Judgement::Welcome(OWN.2));
        let refuse = Judgement::Refuse(PeerRefusal::Unknown);
        // A token that somebody else has learned is of no use to him.
        assert_eq!(judge(6, 60, 7), refuse);
        assert_eq!(judge(6, 61, 6), refuse);
    }

    #[test]
    fn who_was_a_member_and_is_none_any_more_is_refused_at_once() {
        let evicted = Admission {
            peers: BTreeMap::new(),
            ..table()
        };
        let evicted = evicted.after(&table());
        let dialler = hello(6, 60, LANE);
        let refuse = Judgement::Refuse(PeerRefusal::Unknown);
        assert_eq!(evicted.judge(&dialler, None), refuse);
        // Not because of a view that came late.
        let back = table().after(&evicted);
        assert_eq!(back.judge(&dialler, None), Judgement::Welcome(OWN.2));
        let mut many = evicted;
        for id in 0..5000 {
            let one = Admission {
                peers: BTreeMap::from([(MemberId(id), Token(0))]),
                ..table()
            };
            many = one.after(&many);
        }
        assert!(many.former.len() <= FORMER);
    }

    #[test]
    fn who_means_somebody_else_is_told_so() {
        let other_run = PeerHello {
            run: RunId(2),
            ..hello(6, 60, LANE)
        };
        let earlier_self = PeerHello {
            to: MemberId(4),
            ..hello(6, 60, LANE)
        };
        let later_self = PeerHello {
            to: MemberId(9),
            ..hello(6, 60, LANE)
        };
        let refuse = Judgement::Refuse(PeerRefusal::NotMe);
        assert_eq!(table().judge(&other_run, None), refuse);
        assert_eq!(table().judge(&earlier_self, None), refuse);
        assert_eq!(
            table().judge(&later_self, None),
            Judgement::Wait(PeerRefusal::NotMe)
        );
        let nobody = Admission::default();
        assert_eq!(
            nobody.judge(&hello(6, 60, LANE), None),
            Judgement::Wait(PeerRefusal::NotMe)
        );
    }
}
