//! Framed messages, and bytes between them, on a socket that blocks.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::wire::frame::{self, Decoder};

/// A connection. Errors are for people.
pub(super) struct Framed {
    stream: TcpStream,
    decoder: Decoder,
}

impl Framed {
    /// Takes frames of at most `limit` bytes. A read that gets nothing for `read_limit`, or a write
    /// that gets nothing out for `write_limit`, is an error.
    pub(super) fn new(
        stream: TcpStream,
        limit: usize,
        read_limit: Option<Duration>,
        write_limit: Duration,
    ) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(read_limit)?;
        stream.set_write_timeout(Some(write_limit))?;
        Ok(Self {
            stream,
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
            match self.stream.read(part) {
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
        self.stream.read_exact(into).map_err(|e| said(&e))
    }

    /// Sends a message.
    pub(super) fn send<T: Serialize>(&mut self, message: &T, limit: usize) -> Result<(), String> {
        let frame = frame::encode(message, limit).map_err(|e| e.to_string())?;
        self.send_bytes(&frame)
    }

    /// Sends bytes as they are.
    pub(super) fn send_bytes(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.stream.write_all(bytes).map_err(|e| said(&e))
    }
}

fn said(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => "nothing moved for too long".into(),
        ErrorKind::UnexpectedEof => "the connection was closed within a chunk".into(),
        _ => error.to_string(),
    }
}
