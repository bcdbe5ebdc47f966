//! A connection between members while it opens: as it is, or inside TLS.

use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::secure::{Heard, Party, Room, Session, turned_away};
use crate::ids::PublicKey;

/// A connection. Errors are for people.
#[derive(Debug)]
pub(crate) struct Channel {
    stream: TcpStream,
    session: Option<Box<Session>>,
}

/// A connection past its handshake, for whoever carries it on.
pub(crate) type Parts = (std::net::TcpStream, Option<Box<Session>>);

impl Channel {
    /// A connection that was dialled, to be met by whoever has `expected`; without a party, as it
    /// is.
    pub(crate) async fn dial(
        stream: TcpStream,
        party: Option<&Party>,
        expected: Option<PublicKey>,
    ) -> Result<Self, String> {
        let Some(party) = party else {
            return Ok(Self::plain(stream));
        };
        let expected = expected.ok_or("the master vouches for no key of it")?;
        Self::open(stream, Session::dial(party, expected)?).await
    }

    /// A connection that was accepted.
    pub(crate) async fn accept(
        mut stream: TcpStream,
        party: Option<&Party>,
    ) -> Result<Self, String> {
        let Some(party) = party else {
            return Ok(Self::plain(stream));
        };
        if turned_away(&mut stream).await? {
            return Err("it speaks without TLS".into());
        }
        Self::open(stream, Session::accept(party)?).await
    }

    /// A connection as it is.
    pub(crate) fn plain(stream: TcpStream) -> Self {
        Self {
            stream,
            session: None,
        }
    }

    async fn open(stream: TcpStream, session: Session) -> Result<Self, String> {
        let mut channel = Self {
            stream,
            session: Some(Box::new(session)),
        };
        loop {
            let over = match &mut channel.session {
                Some(session) => session.handshake(),
                None => Ok(true),
            };
            let flushed = channel.flush().await;
            if over? {
                flushed?;
                return Ok(channel);
            }
            flushed?;
            channel.fill().await?;
        }
    }

    /// Key of the other end, inside TLS.
    pub(crate) fn key(&self) -> Option<PublicKey> {
        self.session.as_ref()?.key()
    }

    /// Exactly these many bytes.
    pub(crate) async fn read_exact(&mut self, into: &mut [u8]) -> Result<(), String> {
        let Some(session) = &mut self.session else {
            let read = self.stream.read_exact(into).await;
            return read.map(drop).map_err(|e| match e.kind() {
                io::ErrorKind::UnexpectedEof => CLOSED.into(),
                _ => e.to_string(),
            });
        };
        let mut filled = 0;
        loop {
            let heard = session.hear(|bytes| {
                let room = into.get_mut(filled..).unwrap_or_default();
                let n = room.len().min(bytes.len());
                if let (Some(room), Some(bytes)) = (room.get_mut(..n), bytes.get(..n)) {
                    room.copy_from_slice(bytes);
                }
                filled += n;
                n
            })?;
            if filled == into.len() {
                return Ok(());
            }
            if heard == Heard::End {
                return Err(CLOSED.into());
            }
            fill(&mut self.stream, session).await?;
        }
    }

    /// All of these bytes.
    pub(crate) async fn write_all(&mut self, bytes: &[u8]) -> Result<(), String> {
        if self.session.is_none() {
            let written = self.stream.write_all(bytes).await;
            return written.map_err(|e| e.to_string());
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            if let Some(session) = &mut self.session {
                let n = session.say([rest, &[]])?;
                rest = rest.get(n..).unwrap_or_default();
            }
            self.flush().await?;
        }
        Ok(())
    }

    /// For options of its socket.
    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Lets go of it, for a thread without an event loop. The other end is known; inside TLS, this is the
    /// room that it has from now on.
    pub(crate) fn into_parts(self, room: Room) -> io::Result<Parts> {
        let Self {
            stream,
            mut session,
        } = self;
        if let Some(session) = &mut session {
            session.widen(room);
        }
        Ok((stream.into_std()?, session))
    }

    async fn fill(&mut self) -> Result<(), String> {
        match &mut self.session {
            Some(session) => fill(&mut self.stream, session).await,
            None => Ok(()),
        }
    }

    async fn flush(&mut self) -> Result<(), String> {
        let Some(session) = &mut self.session else {
            return Ok(());
        };
        let pending = session.pending();
        let (n, written) = (pending.len(), self.stream.write_all(pending).await);
        session.sent(n);
        written.map_err(|e| e.to_string())
    }
}

async fn fill(stream: &mut TcpStream, session: &mut Session) -> Result<(), String> {
    let room = session.room();
    if room.is_empty() {
        return Err("more than first words have, before it said who it is".into());
    }
    match stream.read(room).await {
        Ok(0) => Err(CLOSED.into()),
        Ok(n) => session.arrived(n),
        Err(e) => Err(e.to_string()),
    }
}

const CLOSED: &str = "it closed the connection during the handshake";
