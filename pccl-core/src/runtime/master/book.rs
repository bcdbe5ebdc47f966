//! What a master keeps of who may come in: its key pair, invitations, bans, and the list of keys that
//! alone are let in. A file holds it, line by line.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io;
use std::net::IpAddr;

use crate::ids::PublicKey;
use crate::transport::secure::{Identity, Met};
use crate::wire::control::{Invite, TicketProof};
use crate::wire::ticket::{self, Secret};

/// Seconds since 1970, so that they mean the same after a restart.
pub(super) type Seconds = u64;

/// All of it.
#[derive(Debug)]
pub(super) struct Book {
    pub(super) identity: Identity,
    invitations: BTreeMap<u32, Invitation>,
    bans: BTreeMap<Whom, Option<Seconds>>,
    /// Empty: everybody with a ticket.
    allowed: BTreeSet<PublicKey>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Invitation {
    secret: Secret,
    /// So many keys, of which these have come.
    uses: Option<u32>,
    keys: BTreeSet<PublicKey>,
    until: Option<Seconds>,
}

/// Whom a ban is for.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Whom {
    /// Keys whose text begins like this.
    Keys(String),
    /// Addresses that share so many bits with this one.
    Network(IpAddr, u8),
}

impl Book {
    /// A new one, with the standing invitation.
    pub(super) fn new() -> io::Result<Self> {
        let mut book = Self {
            identity: Identity::new()?,
            invitations: BTreeMap::new(),
            bans: BTreeMap::new(),
            allowed: BTreeSet::new(),
        };
        book.invite(&Invite::default(), 0)?;
        Ok(book)
    }

    /// Number and secret of an invitation.
    pub(super) fn invitation(&self, number: u32) -> Option<Secret> {
        Some(self.invitations.get(&number)?.secret)
    }

    /// The oldest invitation that anybody may use as often as wanted.
    pub(super) fn standing(&self) -> Option<u32> {
        let open = |i: &&Invitation| i.uses.is_none() && i.until.is_none();
        let mut all = self.invitations.iter();
        all.find(|(_, i)| open(i)).map(|(number, _)| *number)
    }

    /// Whether somebody who shows a ticket in this session may come in with it.
    pub(super) fn admits(&self, met: &Met, proof: &TicketProof, now: Seconds) -> bool {
        let Some(invitation) = self.invitations.get(&proof.invitation) else {
            return false;
        };
        let known = self.allowed.is_empty() || self.allowed.contains(&met.key);
        let room = invitation.has_room_for(met.key);
        let open = invitation.until.is_none_or(|until| now < until);
        invitation.secret.accepts(&met.binding, &proof.proof) && known && room && open
    }

    /// Somebody joins with an invitation. Whether it may, and whether the book has changed.
    pub(super) fn enter(&mut self, number: u32, key: PublicKey) -> (bool, bool) {
        match self.invitations.get_mut(&number) {
            Some(invitation) if invitation.uses.is_none() => (true, false),
            Some(invitation) if invitation.has_room_for(key) => (true, invitation.keys.insert(key)),
            _ => (false, false),
        }
    }

    /// A new invitation; its number.
    pub(super) fn invite(&mut self, wanted: &Invite, now: Seconds) -> io::Result<u32> {
        if self.invitations.len() >= INVITATIONS {
            return Err(io::Error::other(
                "there are too many invitations; revoke some",
            ));
        }
        let mut secret = [0; 16];
        getrandom::fill(&mut secret).map_err(io::Error::other)?;
        let last = self.invitations.last_key_value().map_or(0, |(n, _)| *n);
        let number = last.saturating_add(1);
        let keys: BTreeSet<PublicKey> = wanted.key.into_iter().collect();
        let invitation = Invitation {
            secret: Secret(secret),
            uses: match keys.is_empty() {
                true => wanted.uses.map(|uses| uses.min(USES)),
                // A personal one is for that key alone.
                false => Some(1),
            },
            keys,
            until: wanted.seconds.map(|s| now.saturating_add(s)),
        };
        self.invitations.insert(number, invitation);
        Ok(number)
    }

    /// Takes an invitation back. Whether there was one. Its number is not given again while there are
    /// later ones.
    pub(super) fn revoke(&mut self, number: u32) -> bool {
        self.invitations.remove(&number).is_some()
    }

    /// Bans, or changes until when.
    pub(super) fn ban(&mut self, whom: Whom, seconds: Option<u64>, now: Seconds) -> io::Result<()> {
        self.bans
            .retain(|_, until| until.is_none_or(|until| now < until));
        if self.bans.len() >= BANS && !self.bans.contains_key(&whom) {
            return Err(io::Error::other("there are too many bans; lift some"));
        }
        self.bans
            .insert(whom, seconds.map(|s| now.saturating_add(s)));
        Ok(())
    }

    /// Lifts a ban. Whether there was one.
    pub(super) fn unban(&mut self, whom: &Whom) -> bool {
        self.bans.remove(whom).is_some()
    }

    /// Puts a key on the list of those that alone are let in, or takes it off.
    pub(super) fn allow(&mut self, key: PublicKey, allowed: bool) {
        match allowed {
            true => self.allowed.insert(key),
            false => self.allowed.remove(&key),
        };
    }

    /// Whether nobody from this address, or, if it has shown one, with this key, may come in.
    pub(super) fn bars(&self, address: IpAddr, key: Option<PublicKey>, now: Seconds) -> bool {
        let mut bans = self.bans.iter();
        bans.any(|(whom, until)| until.is_none_or(|until| now < until) && whom.is(address, key))
    }

    /// For the operator: all but secrets.
    pub(super) fn list(&self) -> String {
        let mut list = format!("master {}\n", self.identity.key());
        for (number, invitation) in &self.invitations {
            invitation.write(&mut list, *number, "(secret)");
        }
        self.rest(&mut list);
        list
    }

    /// As the file holds it.
    pub(super) fn text(&self) -> String {
        let mut text = format!("{}\n", self.identity.text());
        for (number, invitation) in &self.invitations {
            let secret = ticket::encode(&invitation.secret.0);
            invitation.write(&mut text, *number, &secret);
        }
        self.rest(&mut text);
        text
    }

    fn rest(&self, text: &mut String) {
        for (whom, until) in &self.bans {
            let until = until.map(|u| format!(" until {u}")).unwrap_or_default();
            // Writing to a string does not fail.
            let _ = writeln!(text, "ban {whom}{until}");
        }
        for key in &self.allowed {
            let _ = writeln!(text, "allow {key}");
        }
    }

    /// From what [`Book::text`] gave.
    pub(super) fn parse(text: &str) -> io::Result<Self> {
        let mut lines = text.lines();
        let mut book = Self {
            identity: Identity::from_text(lines.next().unwrap_or_default().trim())?,
            invitations: BTreeMap::new(),
            bans: BTreeMap::new(),
            allowed: BTreeSet::new(),
        };
        for (at, line) in lines.enumerate() {
            book.line(line).ok_or_else(|| {
                let what = format!("line {} means nothing", at + 2);
                io::Error::new(io::ErrorKind::InvalidData, what)
            })?;
        }
        Ok(book)
    }

    fn line(&mut self, line: &str) -> Option<()> {
        let mut words = line.split_whitespace();
        match words.next() {
            None => {}
            Some("invitation") => {
                let number = words.next()?.parse().ok()?;
                let secret = ticket::decode(words.next()?).ok()?;
                let mut invitation = Invitation {
                    secret: Secret(secret.try_into().ok()?),
                    uses: None,
                    keys: BTreeSet::new(),
                    until: None,
                };
                while let Some(word) = words.next() {
                    let value = words.next()?;
                    match word {
                        "uses" => invitation.uses = Some(value.parse().ok()?),
                        "until" => invitation.until = Some(value.parse().ok()?),
                        "key" => drop(invitation.keys.insert(value.parse().ok()?)),
                        _ => return None,
                    }
                }
                self.invitations.insert(number, invitation);
            }
            Some("ban") => {
                let whom = words.next()?.parse().ok()?;
                let until = match (words.next(), words.next()) {
                    (None, _) => None,
                    (Some("until"), Some(until)) => Some(until.parse().ok()?),
                    _ => return None,
                };
                self.bans.insert(whom, until);
            }
            Some("allow") => {
                self.allowed.insert(words.next()?.parse().ok()?);
            }
            Some(_) => return None,
        }
        words.next().is_none().then_some(())
    }
}

impl Invitation {
    fn has_room_for(&self, key: PublicKey) -> bool {
        let left = |uses: u32| self.keys.len() < uses as usize;
        self.uses.is_none_or(left) || self.keys.contains(&key)
    }

    fn write(&self, text: &mut String, number: u32, secret: &str) {
        // Writing to a string does not fail.
        let _ = write!(text, "invitation {number} {secret}");
        if let Some(uses) = self.uses {
            let _ = write!(text, " uses {uses}");
        }
        if let Some(until) = self.until {
            let _ = write!(text, " until {until}");
        }
        for key in &self.keys {
            let _ = write!(text, " key {key}");
        }
        text.push('\n');
    }
}

impl Whom {
    fn is(&self, address: IpAddr, key: Option<PublicKey>) -> bool {
        match self {
            Self::Keys(begin) => key.is_some_and(|key| key.to_string().starts_with(begin)),
            Self::Network(network, bits) => match (network, address.to_canonical()) {
                (IpAddr::V4(a), IpAddr::V4(b)) => {
                    let differs = u32::from(*a) ^ u32::from(b);
                    differs.leading_zeros() >= u32::from(*bits)
                }
                (IpAddr::V6(a), IpAddr::V6(b)) => {
                    let differs = u128::from(*a) ^ u128::from(b);
                    differs.leading_zeros() >= u32::from(*bits)
                }
                _ => false,
            },
        }
    }
}

impl std::fmt::Display for Whom {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Keys(begin) => f.write_str(begin),
            Self::Network(address, bits) => write!(f, "{address}/{bits}"),
        }
    }
}

impl std::str::FromStr for Whom {
    type Err = String;

    /// `address`, `address/bits`, or a key, or at least eight characters of its beginning.
    fn from_str(text: &str) -> Result<Self, String> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        if let Ok(address) = address.parse::<IpAddr>() {
            let address = address.to_canonical();
            let most = if address.is_ipv4() { 32 } else { 128 };
            let bits = bits.map_or(Ok(most), |bits| bits.parse().map_err(|_| ()));
            return match bits {
                Ok(bits) if bits <= most => Ok(Self::Network(address, bits)),
                _ => Err(format!("{text:?}: a network has 0 to {most} bits")),
            };
        }
        let text = text.to_ascii_lowercase();
        let hex = text.bytes().all(|c| c.is_ascii_hexdigit());
        match hex && (KEY_BEGIN..=KEY_CHARACTERS).contains(&text.len()) {
            true => Ok(Self::Keys(text)),
            false => Err(format!(
                "{text:?} is neither an address, a network (address/bits), nor a key or at least \
                 {KEY_BEGIN} characters of its beginning"
            )),
        }
    }
}

const KEY_CHARACTERS: usize = 64;

/// Fewer characters of a key would ban strangers by accident.
const KEY_BEGIN: usize = 8;

/// Invitations at a time: each is looked up by number.
const INVITATIONS: usize = 10_000;

/// Bans at a time: each connection is held against all.
const BANS: usize = 10_000;

/// Keys of one invitation of limited use: each is a line's part in the file.
const USES: u32 = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn met(n: u8) -> Met {
        Met {
            key: PublicKey([n; 32]),
            binding: [n; 32],
        }
    }

    fn proof(book: &Book, number: u32, met: &Met) -> TicketProof {
        let secret = book.invitation(number).unwrap_or(Secret([0; 16]));
        TicketProof {
            invitation: number,
            proof: secret.proof(&met.binding),
        }
    }

    fn comes_in(book: &mut Book, number: u32, who: u8, now: Seconds) -> bool {
        let met = met(who);
        let proof = proof(book, number, &met);
        book.admits(&met, &proof, now) && book.enter(number, met.key).0
    }

    #[test]
    fn a_proof_is_good_for_its_own_session_and_invitation() {
        let book = Book::new().unwrap();
        let number = book.standing().unwrap();
        let right = proof(&book, number, &met(1));
        assert!(book.admits(&met(1), &right, 0));
        // Recorded and said again in another session.
        assert!(!book.admits(&met(2), &right, 0));
        let other = TicketProof {
            invitation: 9,
            ..right
        };
        assert!(!book.admits(&met(1), &other, 0));
    }

    #[test]
    fn invitations_are_for_some_for_a_time_or_for_one_and_can_be_taken_back() {
        let mut book = Book::new().unwrap();
        let two = Invite {
            uses: Some(2),
            ..Invite::default()
        };
        let two = book.invite(&two, 0).unwrap();
        assert!(comes_in(&mut book, two, 1, 0) && comes_in(&mut book, two, 2, 0));
        assert!(!comes_in(&mut book, two, 3, 0));
        // Who has come may come again.
        assert!(comes_in(&mut book, two, 1, 0));
        let soon = Invite {
            seconds: Some(60),
            ..Invite::default()
        };
        let soon = book.invite(&soon, 1000).unwrap();
        assert!(comes_in(&mut book, soon, 3, 1059) && !comes_in(&mut book, soon, 3, 1060));
        let personal = Invite {
            key: Some(met(7).key),
            ..Invite::default()
        };
        let personal = book.invite(&personal, 0).unwrap();
        assert!(comes_in(&mut book, personal, 7, 0) && !comes_in(&mut book, personal, 8, 0));
        assert_eq!(book.standing(), Some(1));
        assert!(book.revoke(1) && !book.revoke(1));
        assert!(!comes_in(&mut book, 1, 9, 0));
        assert_eq!(book.standing(), None);
    }

    #[test]
    fn bans_are_for_keys_and_networks_and_end_by_themselves() {
        let mut book = Book::new().unwrap();
        let ban = |book: &mut Book, whom: &str, seconds| {
            book.ban(whom.parse().unwrap(), seconds, 100).unwrap();
        };
        ban(&mut book, "01010101", None);
        ban(&mut book, "192.0.2.0/24", Some(50));
        ban(&mut book, "2001:db8::/32", None);
        let from = |text: &str| text.parse::<IpAddr>().unwrap();
        let here = from("198.51.100.1");
        assert!(book.bars(here, Some(met(1).key), 0) && !book.bars(here, Some(met(2).key), 0));
        assert!(!book.bars(here, None, 0));
        assert!(book.bars(from("192.0.2.77"), None, 149));
        assert!(book.bars(from("::ffff:192.0.2.77"), None, 149));
        assert!(!book.bars(from("192.0.2.77"), None, 150));
        assert!(!book.bars(from("192.0.3.1"), None, 0));
        assert!(
            book.bars(from("2001:db8:7::1"), None, 0) && !book.bars(from("2001:db9::1"), None, 0)
        );
        assert!(book.unban(&"01010101".parse().unwrap()));
        assert!(!book.bars(here, Some(met(1).key), 0));
        for bad in ["", "0101", "192.0.2.0/33", "x1010101", "1.2.3", "::/129"] {
            assert!(bad.parse::<Whom>().is_err(), "{bad}");
        }
    }

    #[test]
    fn with_a_list_only_those_on_it_come_in() {
        let mut book = Book::new().unwrap();
        book.allow(met(3).key, true);
        assert!(comes_in(&mut book, 1, 3, 0) && !comes_in(&mut book, 1, 4, 0));
        book.allow(met(3).key, false);
        assert!(comes_in(&mut book, 1, 4, 0));
    }

    #[test]
    fn the_file_holds_all_of_it_and_the_list_no_secret() {
        let mut book = Book::new().unwrap();
        let invite = Invite {
            uses: Some(3),
            seconds: Some(9),
            key: None,
        };
        let number = book.invite(&invite, 5).unwrap();
        book.enter(number, met(4).key);
        book.ban("192.0.2.1".parse().unwrap(), Some(7), 1).unwrap();
        book.ban("aabbccdd".parse().unwrap(), None, 1).unwrap();
        book.allow(met(4).key, true);
        let text = book.text();
        let same = Book::parse(&text).unwrap();
        assert_eq!(same.text(), text);
        assert_eq!(same.identity.key(), book.identity.key());
        let list = book.list();
        for line in text.lines().take(3) {
            let secret = line.split_whitespace().nth(2).unwrap_or(line);
            assert!(!list.contains(secret), "{list}");
        }
        for bad in [
            "invitation 1",
            "ban",
            "ban 1.2.3.4 for 3",
            "nonsense",
            "allow 12",
        ] {
            let first = text.lines().next().unwrap();
            assert!(Book::parse(&format!("{first}\n{bad}\n")).is_err(), "{bad}");
        }
        assert!(Book::parse("").is_err());
    }
}
