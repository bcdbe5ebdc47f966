//! TLS without a socket, for connections between members: bytes in, bytes out.
//!
//! What arrives is decrypted one record at a time and handed on; what is sent is encrypted straight
//! from where it lies. A session is begun by the control thread and carried on by the data thread.

use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncryptError, InsufficientSizeError, UnbufferedStatus,
};

use super::identity::public_key;
use super::party::{Party, nobody};
use super::{HANDSHAKE_LIMIT, no_tls};
use crate::ids::PublicKey;

/// One end of a TLS session. Errors are for people, and end it.
pub(crate) struct Session {
    side: Side,
    incoming: Buffer,
    outgoing: Buffer,
    /// What was decrypted and not taken: at most what `incoming` had room for.
    plain: Buffer,
    /// Bytes that came before the end of the handshake.
    before: usize,
    ready: bool,
    closed: bool,
    broken: Option<String>,
    room: Room,
}

/// What came of listening.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Heard {
    /// All that was there has been handed on: more must come from the socket.
    All,
    /// The taker took no more.
    Enough,
    /// The other end has said that it sends no more.
    End,
}

enum Side {
    Client(Box<UnbufferedClientConnection>),
    Server(Box<UnbufferedServerConnection>),
}

/// What one step of TLS came to.
enum Step {
    /// There may be more to do.
    More,
    /// The handshake cannot go on without more from the other end.
    Blocked,
    /// Between handshake and end; so many bytes were encrypted.
    Ready(usize),
    Closed,
}

impl Session {
    /// To dial whoever has this key.
    pub(crate) fn dial(party: &Party, expected: PublicKey) -> Result<Self, String> {
        let new = || UnbufferedClientConnection::new(party.client(expected)?, nobody()?);
        let connection = new().map_err(|e| e.to_string())?;
        Ok(Self::new(Side::Client(Box::new(connection))))
    }

    /// To accept somebody.
    pub(crate) fn accept(party: &Party) -> Result<Self, String> {
        let connection = UnbufferedServerConnection::new(party.server());
        let connection = connection.map_err(|e| e.to_string())?;
        Ok(Self::new(Side::Server(Box::new(connection))))
    }

    fn new(side: Side) -> Self {
        Self {
            side,
            incoming: Buffer::default(),
            outgoing: Buffer::default(),
            plain: Buffer::default(),
            before: 0,
            ready: false,
            closed: false,
            broken: None,
            room: Room {
                incoming: NARROW_BYTES,
                outgoing: NARROW_BYTES,
            },
        }
    }

    /// Key of the other end, once the handshake is over.
    pub(crate) fn key(&self) -> Option<PublicKey> {
        let shown = match &self.side {
            Side::Client(connection) => connection.peer_certificates(),
            Side::Server(connection) => connection.peer_certificates(),
        };
        public_key(shown?.first()?)
    }

    /// Takes the handshake as far as it goes without the other end. Whether it is over.
    pub(crate) fn handshake(&mut self) -> Result<bool, String> {
        while !self.ready {
            match self.step(&mut |_| 0, [&[], &[]]) {
                Ok(Step::More) => {}
                Ok(Step::Blocked) => return Ok(false),
                Ok(Step::Ready(_)) => self.ready = true,
                Ok(Step::Closed) => return Err(CLOSED.into()),
                Err(cause) => return Err(cause),
            }
        }
        Ok(true)
    }

    /// The other end is a member: from now on it may send as much at a time as TLS allows.
    pub(crate) fn widen(&mut self, room: Room) {
        self.room = room;
    }

    /// Where bytes from the socket go. Before [`Session::widen`] there is none once more is there than
    /// first words have.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        self.incoming.room(self.room.incoming)
    }

    /// So many bytes were put there.
    pub(crate) fn arrived(&mut self, n: usize) -> Result<(), String> {
        if !self.ready {
            let all = [self.incoming.rest(), self.incoming.beyond(n)].concat();
            if self.before == 0
                && let Some(what) = no_tls(&all)
            {
                return Err(what);
            }
            self.before += n;
            if self.before >= HANDSHAKE_LIMIT {
                return Err("a handshake without an end".into());
            }
        }
        self.incoming.filled(n);
        Ok(())
    }

    /// Hands on what has arrived, piece by piece; the taker says how much it takes of each. What it
    /// does not take comes first the next time.
    pub(crate) fn hear(&mut self, mut take: impl FnMut(&[u8]) -> usize) -> Result<Heard, String> {
        loop {
            while !self.plain.is_empty() {
                match take(self.plain.rest()) {
                    0 => return Ok(Heard::Enough),
                    n => self.plain.taken(n),
                }
            }
            match self.step(&mut take, [&[], &[]])? {
                Step::More => {}
                Step::Blocked => return Ok(Heard::All),
                Step::Ready(_) if !self.plain.is_empty() => {}
                Step::Ready(_) if self.closed => return Ok(Heard::End),
                Step::Ready(_) => return Ok(Heard::All),
                Step::Closed => return Ok(Heard::End),
            }
        }
    }

    /// Encrypts from the front of `parts`, as much as goes at a time, for [`Session::pending`], which
    /// must be empty. Returns how much that was.
    pub(crate) fn say(&mut self, parts: [&[u8]; 2]) -> Result<usize, String> {
        loop {
            match self.step(&mut |_| 0, parts)? {
                Step::More => {}
                Step::Ready(n) => return Ok(n),
                Step::Blocked | Step::Closed => return Err(CLOSED.into()),
            }
        }
    }

    /// What the socket is to send.
    pub(crate) fn pending(&self) -> &[u8] {
        self.outgoing.rest()
    }

    /// The socket has taken so much of it.
    pub(crate) fn sent(&mut self, n: usize) {
        self.outgoing.taken(n);
    }

    fn step(
        &mut self,
        take: &mut dyn FnMut(&[u8]) -> usize,
        parts: [&[u8]; 2],
    ) -> Result<Step, String> {
        let Self {
            side,
            incoming,
            outgoing,
            plain,
            closed,
            broken,
            room,
            ..
        } = self;
        let [front, back] = parts;
        let front = front
            .get(..room.outgoing.min(front.len()))
            .unwrap_or_default();
        let left = room.outgoing - front.len();
        let back = back.get(..left.min(back.len())).unwrap_or_default();
        let parts = [front, back];
        if let Some(cause) = broken {
            return Err(cause.clone());
        }
        let rest = incoming.rest_mut();
        let (discard, step) = match side {
            Side::Client(connection) => {
                let status = connection.process_tls_records(rest);
                state(status, outgoing, plain, closed, take, parts)
            }
            Side::Server(connection) => {
                let status = connection.process_tls_records(rest);
                state(status, outgoing, plain, closed, take, parts)
            }
        };
        incoming.taken(discard);
        // TLS is not to be given again what it has found fault with.
        *broken = step.as_ref().err().cloned();
        step
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Session").field(&self.key()).finish()
    }
}

/// Carries one state of TLS out. Returns how much of what came in is done with.
fn state<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    outgoing: &mut Buffer,
    plain: &mut Buffer,
    closed: &mut bool,
    take: &mut dyn FnMut(&[u8]) -> usize,
    parts: [&[u8]; 2],
) -> (usize, Result<Step, String>) {
    let UnbufferedStatus { mut discard, state } = status;
    let step = match state {
        Err(e) => Err(e.to_string()),
        Ok(ConnectionState::ReadTraffic(mut records)) => loop {
            match records.next_record() {
                None => break Ok(Step::More),
                Some(Err(e)) => break Err(e.to_string()),
                Some(Ok(record)) => {
                    discard += record.discard;
                    let mut rest = record.payload;
                    while plain.is_empty() && !rest.is_empty() {
                        match take(rest) {
                            0 => break,
                            n => rest = rest.get(n..).unwrap_or_default(),
                        }
                    }
                    plain.append(rest);
                }
            }
        },
        Ok(ConnectionState::EncodeTlsData(mut data)) => loop {
            match data.encode(outgoing.room(outgoing.ahead())) {
                Ok(n) => {
                    outgoing.filled(n);
                    break Ok(Step::More);
                }
                Err(EncodeError::InsufficientSize(more)) => outgoing.grow(&more),
                Err(e) => break Err(e.to_string()),
            }
        },
        Ok(ConnectionState::TransmitTlsData(data)) => {
            data.done();
            Ok(Step::More)
        }
        Ok(ConnectionState::BlockedHandshake) => Ok(Step::Blocked),
        Ok(ConnectionState::PeerClosed) => {
            *closed = true;
            Ok(Step::More)
        }
        Ok(ConnectionState::Closed) => Ok(Step::Closed),
        Ok(ConnectionState::WriteTraffic(mut traffic)) => {
            let mut all = 0;
            let mut result = Ok(());
            for part in parts {
                while !part.is_empty() {
                    match traffic.encrypt(part, outgoing.room(outgoing.ahead())) {
                        Ok(n) => {
                            outgoing.filled(n);
                            all += part.len();
                            break;
                        }
                        Err(EncryptError::InsufficientSize(more)) => outgoing.grow(&more),
                        Err(e) => {
                            result = Err(e.to_string());
                            break;
                        }
                    }
                }
            }
            result.map(|()| Step::Ready(all))
        }
        Ok(_) => Err("a state of TLS that does not occur here".into()),
    };
    (discard, step)
}

/// Bytes that come in at one end and go at the other.
#[derive(Default)]
struct Buffer {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Buffer {
    fn is_empty(&self) -> bool {
        self.start == self.end
    }

    fn rest(&self) -> &[u8] {
        self.bytes.get(self.start..self.end).unwrap_or_default()
    }

    fn rest_mut(&mut self) -> &mut [u8] {
        self.bytes.get_mut(self.start..self.end).unwrap_or_default()
    }

    /// What was put behind the end and is not counted yet.
    fn beyond(&self, n: usize) -> &[u8] {
        self.bytes.get(self.end..self.end + n).unwrap_or_default()
    }

    /// Room behind what is there, of a buffer of at least `size` bytes.
    fn room(&mut self, size: usize) -> &mut [u8] {
        if self.is_empty() {
            (self.start, self.end) = (0, 0);
        }
        if self.bytes.len() < size {
            self.bytes.resize(size, 0);
        }
        if self.end == self.bytes.len() && self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        self.bytes.get_mut(self.end..).unwrap_or_default()
    }

    /// The size it has.
    fn ahead(&self) -> usize {
        self.bytes.len()
    }

    /// Room for what did not fit.
    fn grow(&mut self, more: &InsufficientSizeError) {
        let size = self.end + more.required_size;
        self.room(size);
    }

    fn append(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            let size = self.end + bytes.len();
            let room = self.room(size);
            if let Some(room) = room.get_mut(..bytes.len()) {
                room.copy_from_slice(bytes);
                self.filled(bytes.len());
            }
        }
    }

    fn filled(&mut self, n: usize) {
        self.end = (self.end + n).min(self.bytes.len());
    }

    fn taken(&mut self, n: usize) {
        self.start = (self.start + n).min(self.end);
    }
}

/// Bytes of the socket that are held of one that has not said who it is: the longest hello fits, in
/// one record.
const NARROW_BYTES: usize = 8 * 1024;

/// How much a session holds of what passes, once it is known who is at the other end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Room {
    /// Bytes of the socket at a time; at least a record, of which a read may end within one.
    pub(crate) incoming: usize,
    /// Bytes encrypted at a time.
    pub(crate) outgoing: usize,
}

impl Room {
    /// For data: a segment of the default size in each direction. With a quarter of it, encryption
    /// costs a tenth more, since the socket is asked more often.
    pub(crate) const LANE: Self = Self {
        incoming: 256 * 1024,
        outgoing: 256 * 1024,
    };

    /// For who fetches state: it asks little and gets much, from a few at a time.
    pub(crate) const FETCH: Self = Self {
        incoming: 128 * 1024,
        outgoing: NARROW_BYTES,
    };

    /// For who serves state: it is asked little, by many.
    pub(crate) const SERVE: Self = Self {
        incoming: 20 * 1024,
        outgoing: 32 * 1024,
    };

    /// All that a session may hold: what came, what of it was decrypted and not taken, and what is to
    /// go, with what TLS adds.
    #[cfg(test)]
    pub(crate) fn most(self) -> usize {
        2 * self.incoming + self.outgoing + self.outgoing / 16 + 1024
    }
}

const CLOSED: &str = "the other end closed the session";
