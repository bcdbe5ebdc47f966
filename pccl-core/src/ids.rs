//! Newtypes for everything that has a number, so that the compiler keeps them apart.
//!
//! All of them are plain data: they are compared, ordered, sent and printed, nothing else.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

use serde::{Deserialize, Serialize};

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty), $prefix:literal) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
        )]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}

number! {
    /// A member (or a newcomer that waits for admission) of a run.
    ///
    /// The master counts them upwards and never gives a number twice in a run, so the smaller of
    /// two is the one that registered first.
    MemberId(u64), "m"
}
number! {
    /// Peers of one group reduce and synchronise with one another; groups share only the run.
    PeerGroup(u32), "g"
}
number! {
    /// Version of one group's members, order and addresses. Grows by one at each change.
    Epoch(u64), "e"
}
number! {
    /// Version of the run's membership as a whole: grows at every admission, loss, eviction and
    /// re-ordering in any group. Orders the attributes that verdicts are stamped with.
    ViewId(u64), "v"
}
number! {
    /// How many unanimous calls of the run have completed.
    Round(u64), "r"
}
number! {
    /// What the user calls an operation. Operations with different tags run at the same time.
    Tag(u64), "t"
}
number! {
    /// Life of a master. Peers obey only the highest that they have met.
    Incarnation(u64), "i"
}
number! {
    /// One control connection, numbered by whoever accepted it.
    ConnId(u64), "c"
}
number! {
    /// One lane (data connection), numbered locally; never reused.
    LaneId(u64), "l"
}
number! {
    /// One call of the local user: a collective, a vote, a synchronisation.
    CallId(u64), "call"
}

/// Names a run; a master makes one up when it starts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct RunId(pub u128);

impl fmt::Debug for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "run-{:08x}", (self.0 >> 96) as u32)
    }
}

/// Shows that its bearer is the member it says it is. Made by the master, told to the member and
/// to those that must recognise it. Never printed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Token(pub u128);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// Names a master or a peer: its public key (Ed25519), whose other half it proves to have in every
/// TLS handshake. No secret.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct PublicKey(pub [u8; 32]);

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "key-")?;
        self.0.iter().take(8).try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl std::str::FromStr for PublicKey {
    type Err = String;

    /// 64 hexadecimal digits, as [`fmt::Display`] gives them.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no key of 64 hexadecimal digits");
        let mut key = Self::default();
        if text.len() != 2 * key.0.len() {
            return Err(wrong());
        }
        for (at, byte) in key.0.iter_mut().enumerate() {
            let digits = text.get(2 * at..2 * at + 2).ok_or_else(wrong)?;
            // Digits only: the standard library would take a sign, too.
            let digits = Some(digits).filter(|d| d.bytes().all(|c| c.is_ascii_hexdigit()));
            let parsed = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
            *byte = parsed.ok_or_else(wrong)?;
        }
        Ok(key)
    }
}

/// Order of verdicts: only grows, across restarts of the master too.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize,
)]
pub struct Serial {
    /// Life of the master that gave the verdict.
    pub incarnation: Incarnation,
    /// Counts the verdicts of that life, from one.
    pub counter: u64,
}

impl fmt::Display for Serial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s{}.{}", self.incarnation.0, self.counter)
    }
}

/// 128 bits that stand for content. Not cryptographic.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Digest(pub u128);

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", (self.0 >> 64) as u64)
    }
}

/// 256 bits that stand for a piece of the shared state. How many of them count depends on the run:
/// all of them where digests are cryptographic, the first 128 where they are fast.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct ContentDigest(pub [u8; 32]);

impl ContentDigest {
    /// A digest of 128 bits; the others are zero.
    pub fn fast(bits: u128) -> Self {
        let mut bytes = [0; 32];
        for (byte, bit) in bytes.iter_mut().zip(bits.to_le_bytes()) {
            *byte = bit;
        }
        Self(bytes)
    }
}

impl fmt::Debug for ContentDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for ContentDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().take(8).try_for_each(|b| write!(f, "{b:02x}"))
    }
}

/// A point on a monotone clock, in nanoseconds since an origin that only its owner knows.
///
/// The pure machines are handed one with every event; none of them reads a clock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(pub u64);

impl Time {
    /// Time between two points; zero if `earlier` is not earlier.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Self;

    fn add(self, rhs: Duration) -> Self {
        let nanos = u64::try_from(rhs.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanos))
    }
}

impl Sub<Self> for Time {
    type Output = Duration;

    fn sub(self, rhs: Self) -> Duration {
        self.since(rhs)
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.6}s", self.0 as f64 / 1e9)
    }
}
