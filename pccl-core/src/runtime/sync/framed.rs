//! Framed messages, and bytes between them, on a socket that blocks.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::transport::channel::Parts;
use crate::transport::secure::{Heard, Session};
use crate::wire::frame::{self, Decoder};

/// A connection. Errors are for people.
pub(super) struct Framed {
    stream: TcpStream,
    session: Option<Box<Session>>,
    decoder: Decoder,
}

impl Framed {
    /// Takes frames of at most `limit` bytes. A read that gets nothing for `read_limit`, or a write
    /// that gets nothing out for `write_limit`, is an error.
    pub(super) fn new(
        (stream, session): Parts,
        limit: usize,
        read_limit: Option<Duration>,
        write_limit: Duration,
    ) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(read_limit)?;
        stream.set_write_timeout(Some(write_limit))?;
        Ok(Self {
            stream,
            session,
            decoder: Decoder::new(limit),
        })
    }

    /// The next message, and not a byte more; none if the other end has closed in front of it.
    pub(super) fn message<T: DeserializeOwned>(&mut self) -> Result<Option<T>, String> {
        let mut chunk = [0; 4096];
        loop {
            if let Some(message) = self.decoder.message().map_err(|e| e.to_string())? {
                return Ok(Some(message));
            }
            let want = self.decoder.missing().min(chunk.len());
            let part = chunk.get_mut(..want).unwrap_or_default();
            match read(&mut self.stream, &mut self.session, part) {
                Ok(0) if self.decoder.is_empty() => return Ok(None),
                Ok(0) => return Err("the connection was closed within a message".into()),
                Ok(n) => self.decoder.feed(part.get(..n).unwrap_or_default()),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(said(&e)),
            }
        }
    }

    /// Exactly these many bytes.
    pub(super) fn bytes(&mut self, into: &mut [u8]) -> Result<(), String> {
        if self.session.is_none() {
            return self.stream.read_exact(into).map_err(|e| said(&e));
        }
        let mut rest = into;
        while !rest.is_empty() {
            match read(&mut self.stream, &mut self.session, rest) {
                Ok(0) => return Err(said(&ErrorKind::UnexpectedEof.into())),
                Ok(n) => rest = rest.get_mut(n..).unwrap_or_default(),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(said(&e)),
            }
        }
        Ok(())
    }

    /// Sends a message.
    pub(super) fn send<T: Serialize>(&mut self, message: &T, limit: usize) -> Result<(), String> {
        let frame = frame::encode(message, limit).map_err(|e| e.to_string())?;
        self.send_bytes(&frame)
    }

    /// Sends bytes as they are.
    pub(super) fn send_bytes(&mut self, bytes: &[u8]) -> Result<(), String> {
        let Some(session) = &mut self.session else {
            return self.stream.write_all(bytes).map_err(|e| said(&e));
        };
        let mut rest = bytes;
        while !rest.is_empty() {
            let n = session.say([rest, &[]])?;
            rest = rest.get(n..).unwrap_or_default();
            let pending = session.pending();
            let written = self.stream.write_all(pending);
            let n = pending.len();
            session.sent(n);
            written.map_err(|e| said(&e))?;
        }
        Ok(())
    }
}

/// As a socket's read, through TLS if there is any.
fn read(
    stream: &mut TcpStream,
    session: &mut Option<Box<Session>>,
    into: &mut [u8],
) -> io::Result<usize> {
    let Some(session) = session else {
        return stream.read(into);
    };
    loop {
        let mut filled = 0;
        let heard = session.hear(|bytes| {
            let room = into.get_mut(filled..).unwrap_or_default();
            let n = room.len().min(bytes.len());
            if let (Some(room), Some(bytes)) = (room.get_mut(..n), bytes.get(..n)) {
                room.copy_from_slice(bytes);
            }
            filled += n;
            n
        });
        if filled > 0 {
            return Ok(filled);
        }
        if heard.map_err(io::Error::other)? == Heard::End {
            return Ok(0);
        }
        match stream.read(session.room())? {
            0 => return Ok(0),
            n => session.arrived(n).map_err(io::Error::other)?,
        }
    }
}

fn said(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => "nothing moved for too long".into(),
        ErrorKind::UnexpectedEof => "the connection was closed within a chunk".into(),
        _ => error.to_string(),
    }
}
