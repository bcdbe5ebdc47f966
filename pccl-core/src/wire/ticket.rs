//! Join tickets: one short text that is all a peer needs to find a master, to recognise it, and to be
//! let in.
//!
//! A ticket is `pccl1` and, in the alphabet of [`ALPHABET`] (six bits a character, most significant
//! first): key of the master (32 bytes), number of the invitation (u32, little-endian), secret
//! (16 bytes), the addresses (each one byte of length and so many bytes of text), and the first four
//! bytes of the BLAKE3 digest of all that, which finds slips of the pen.

use std::fmt;

use crate::ids::PublicKey;

/// How every ticket begins.
pub const PREFIX: &str = "pccl1";

/// Addresses that a ticket may have.
pub const MOST_ADDRESSES: usize = 8;

/// What makes a ticket worth something. Never printed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret(pub [u8; 16]);

impl Secret {
    /// Shows that its bearer has it, to somebody who has it too, for one TLS session: `binding` is
    /// what only the two ends of that session know.
    pub fn proof(&self, binding: &[u8; 32]) -> [u8; 32] {
        let key = blake3::derive_key(PROOF_CONTEXT, &self.0);
        *blake3::keyed_hash(&key, binding).as_bytes()
    }

    /// Whether a proof is right. Takes the same time whichever byte is wrong.
    pub fn accepts(&self, binding: &[u8; 32], proof: &[u8; 32]) -> bool {
        blake3::Hash::from(self.proof(binding)) == blake3::Hash::from(*proof)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// A ticket. What is printed of it are its addresses; the whole text comes from [`Ticket::reveal`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ticket {
    /// Where the master is, each as `host:port`, `address:port` or `[address]:port`; all are tried.
    pub addresses: Vec<String>,
    /// Key of the master.
    pub key: PublicKey,
    /// Which of the master's invitations this is.
    pub invitation: u32,
    /// Secret of that invitation.
    pub secret: Secret,
}

/// Why a text is no ticket. Says nothing of the text itself, which may be a damaged secret.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TicketError {
    /// It begins otherwise.
    #[error("it does not begin with {PREFIX}")]
    Prefix,
    /// A character that no ticket has.
    #[error("its character {0} is none that a ticket has")]
    Character(usize),
    /// Cut off, or changed.
    #[error("a part of it is missing or was changed; copy all of it")]
    Damaged,
}

impl Ticket {
    /// Whether a text means to be a ticket, and not an address.
    pub fn is_meant(text: &str) -> bool {
        text.trim().starts_with(PREFIX) && !text.contains(':')
    }

    /// From its text; space around it does not matter.
    pub fn parse(text: &str) -> Result<Self, TicketError> {
        let text = text.trim();
        let body = text.strip_prefix(PREFIX).ok_or(TicketError::Prefix)?;
        let bytes = decode(body)?;
        let (content, check) = bytes
            .split_last_chunk::<CHECK_BYTES>()
            .ok_or(TicketError::Damaged)?;
        if checksum(content) != *check {
            return Err(TicketError::Damaged);
        }
        read(content).ok_or(TicketError::Damaged)
    }

    /// The whole text, with the secret in it.
    pub fn reveal(&self) -> String {
        let mut bytes = self.key.0.to_vec();
        bytes.extend(self.invitation.to_le_bytes());
        bytes.extend(self.secret.0);
        let fits = |a: &&String| a.len() <= usize::from(u8::MAX);
        for address in self.addresses.iter().filter(fits).take(MOST_ADDRESSES) {
            bytes.push(address.len() as u8);
            bytes.extend(address.as_bytes());
        }
        bytes.extend(checksum(&bytes));
        format!("{PREFIX}{}", encode(&bytes))
    }
}

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.addresses.join(" or "))
    }
}

fn read(content: &[u8]) -> Option<Ticket> {
    let (key, rest) = content.split_first_chunk()?;
    let (invitation, rest) = rest.split_first_chunk()?;
    let (secret, mut rest) = rest.split_first_chunk()?;
    let mut addresses = Vec::new();
    while let Some((length, after)) = rest.split_first() {
        let (address, after) = after.split_at_checked(usize::from(*length))?;
        addresses.push(String::from_utf8(address.to_vec()).ok()?);
        rest = after;
    }
    (1..=MOST_ADDRESSES)
        .contains(&addresses.len())
        .then(|| Ticket {
            addresses,
            key: PublicKey(*key),
            invitation: u32::from_le_bytes(*invitation),
            secret: Secret(*secret),
        })
}

fn checksum(content: &[u8]) -> [u8; CHECK_BYTES] {
    let [a, b, c, d, ..] = *blake3::hash(content).as_bytes();
    [a, b, c, d]
}

/// Bytes as characters of [`ALPHABET`].
pub fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let mut bits = 0_u32;
        for i in 0..3 {
            bits = bits << 8 | u32::from(group.get(i).copied().unwrap_or(0));
        }
        for i in 0..=group.len() {
            let six = bits >> (18 - 6 * i) & 63;
            text.push(char::from(
                ALPHABET.get(six as usize).copied().unwrap_or(b'-'),
            ));
        }
    }
    text
}

/// What [`encode`] made characters of; nothing else.
pub fn decode(text: &str) -> Result<Vec<u8>, TicketError> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3 + 2);
    let (mut bits, mut count) = (0_u32, 0);
    for (i, character) in text.bytes().enumerate() {
        let six = ALPHABET.iter().position(|c| *c == character);
        let six = six.ok_or(TicketError::Character(i + 1 + PREFIX.len()))?;
        bits = (bits << 6 | six as u32) & 0xffff;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    // What is left over is zero, or the text is not what was encoded.
    let rest = bits & ((1 << count) - 1);
    match count < 6 && rest == 0 {
        true => Ok(bytes),
        false => Err(TicketError::Damaged),
    }
}

/// Characters that no shell, address bar or mail program takes for something else.
pub const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

const CHECK_BYTES: usize = 4;

/// Keeps what is derived from a secret here apart from whatever else is ever derived from it.
const PROOF_CONTEXT: &str = "PCCL 2 proof of a join ticket";

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ticket(addresses: &[&str]) -> Ticket {
        Ticket {
            addresses: addresses.iter().map(|a| (*a).to_owned()).collect(),
            key: PublicKey([7; 32]),
            invitation: 3,
            secret: Secret([9; 16]),
        }
    }

    #[test]
    fn a_ticket_survives_being_written_down() {
        let ticket = ticket(&["master.example:48148", "[2001:db8::1]:48148", "192.0.2.1:1"]);
        let text = ticket.reveal();
        assert_eq!(Ticket::parse(&text), Ok(ticket.clone()));
        assert_eq!(Ticket::parse(&format!("  {text}\n")), Ok(ticket));
        assert!(Ticket::is_meant(&text) && !Ticket::is_meant("pccl1.example:48148"));
    }

    #[test]
    fn every_slip_of_the_pen_is_noticed() {
        let text = ticket(&["127.0.0.1:48148"]).reveal();
        for at in PREFIX.len()..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] = if bytes[at] == b'x' { b'y' } else { b'x' };
            let changed = String::from_utf8(bytes).unwrap();
            assert_eq!(Ticket::parse(&changed), Err(TicketError::Damaged));
            assert!(Ticket::parse(&text[..at]).is_err());
        }
        assert_eq!(Ticket::parse("127.0.0.1:1"), Err(TicketError::Prefix));
        assert_eq!(Ticket::parse("pccl1AA!"), Err(TicketError::Character(8)));
        assert_eq!(Ticket::parse("pccl1"), Err(TicketError::Damaged));
    }

    #[test]
    fn nothing_that_is_printed_shows_the_secret() {
        let ticket = ticket(&["a:1", "b:2"]);
        assert_eq!(ticket.to_string(), "a:1 or b:2");
        let debug = format!("{ticket:?}");
        assert!(
            debug.contains("Secret(..)") && !debug.contains("9, 9"),
            "{debug}"
        );
    }

    #[test]
    fn a_proof_is_good_for_one_session_and_one_secret() {
        let (secret, other) = (Secret([1; 16]), Secret([2; 16]));
        let proof = secret.proof(&[5; 32]);
        assert!(secret.accepts(&[5; 32], &proof));
        assert!(!secret.accepts(&[6; 32], &proof) && !other.accepts(&[5; 32], &proof));
    }

    proptest! {
        #[test]
        fn any_text_gives_a_ticket_or_an_error(text in "(pccl1)?[-_A-Za-z0-9]{0,200}") {
            let _ = Ticket::parse(&text);
        }

        #[test]
        fn any_bytes_survive(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            prop_assert_eq!(decode(&encode(&bytes)), Ok(bytes));
        }
    }
}
