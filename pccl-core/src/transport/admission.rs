//! Who is let in when it dials.

use std::collections::BTreeMap;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::ids::{MemberId, RunId, Token};
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
    /// Whether to let a dialler in.
    pub(crate) fn judge(&self, hello: &PeerHello) -> Judgement {
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
        match table.get(&hello.from) {
            Some(expected) if *expected == hello.token => Judgement::Welcome(token),
            Some(_) => Judgement::Refuse(PeerRefusal::Unknown),
            None => Judgement::Wait(refusal),
        }
    }
}

/// Judges a dialler by the newest table, at the latest when `deadline` has come.
pub(crate) async fn admit(
    table: &mut watch::Receiver<Admission>,
    hello: &PeerHello,
    deadline: Instant,
) -> Result<Token, PeerRefusal> {
    loop {
        let judgement = table.borrow_and_update().judge(hello);
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

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: (RunId, MemberId, Token) = (RunId(1), MemberId(5), Token(50));

    fn table() -> Admission {
        Admission {
            own: Some(OWN),
            peers: BTreeMap::from([(MemberId(6), Token(60))]),
            readers: BTreeMap::from([(MemberId(7), Token(70))]),
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
        let judge = |h: &PeerHello| table().judge(h);
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
        assert_eq!(table().judge(&other_run), refuse);
        assert_eq!(table().judge(&earlier_self), refuse);
        assert_eq!(
            table().judge(&later_self),
            Judgement::Wait(PeerRefusal::NotMe)
        );
        let nobody = Admission::default();
        assert_eq!(
            nobody.judge(&hello(6, 60, LANE)),
            Judgement::Wait(PeerRefusal::NotMe)
        );
    }
}
