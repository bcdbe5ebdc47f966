//! TLS on control connections, whose two halves belong to different tasks.

use std::io::{self, ErrorKind, Read, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustls::{ClientConnection, Connection, ServerConnection};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use super::identity::public_key;
use super::party::{Party, nobody};
use super::{HANDSHAKE_LIMIT, no_tls};
use crate::ids::PublicKey;

/// The reading half.
pub(crate) struct Reading {
    half: OwnedReadHalf,
    tls: Option<Tls>,
}

/// The writing half.
pub(crate) struct Writing {
    half: OwnedWriteHalf,
    tls: Option<Shared>,
}

/// What two ends of a session know of one another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Met {
    /// Key of the other end.
    pub(crate) key: PublicKey,
    /// Known to these two ends only, and different in every session.
    pub(crate) binding: [u8; 32],
}

type Shared = Arc<Mutex<Connection>>;

struct Tls {
    shared: Shared,
    /// What came from the socket and has not been given to TLS.
    chunk: Box<[u8]>,
    start: usize,
    end: usize,
    broken: bool,
}

/// Dials whoever has this key.
pub(crate) async fn dial(
    stream: TcpStream,
    party: &Party,
    expected: PublicKey,
) -> Result<(Reading, Writing, Met), String> {
    let new = || ClientConnection::new(party.client(expected)?, nobody()?);
    open(stream, new().map_err(|e| e.to_string())?.into()).await
}

/// Accepts somebody.
pub(crate) async fn accept(
    stream: TcpStream,
    party: &Party,
) -> Result<(Reading, Writing, Met), String> {
    let connection = ServerConnection::new(party.server()).map_err(|e| e.to_string())?;
    open(stream, connection.into()).await
}

/// Both halves of a connection without TLS.
pub(crate) fn plain(stream: TcpStream) -> (Reading, Writing) {
    let (read, write) = stream.into_split();
    (
        Reading {
            half: read,
            tls: None,
        },
        Writing {
            half: write,
            tls: None,
        },
    )
}

impl Reading {
    /// As a socket's read.
    pub(crate) async fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else {
            return self.half.read(into).await;
        };
        loop {
            if let Some(n) = tls.decrypted(into)? {
                return Ok(n);
            }
            if tls.start < tls.end {
                tls.feed()?;
                continue;
            }
            let n = self.half.read(&mut tls.chunk).await?;
            if n == 0 {
                return Ok(0);
            }
            (tls.start, tls.end) = (0, n);
        }
    }
}

impl Tls {
    fn decrypted(&self, into: &mut [u8]) -> io::Result<Option<usize>> {
        match lock(&self.shared).reader().read(into) {
            Ok(n) => Ok(Some(n)),
            Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn feed(&mut self) -> io::Result<()> {
        if self.broken {
            // TLS is not to be given again what it has found fault with.
            return Err(ErrorKind::InvalidData.into());
        }
        let mut rest = self.chunk.get(self.start..self.end).unwrap_or_default();
        let mut connection = lock(&self.shared);
        self.start += connection.read_tls(&mut rest)?;
        let processed = connection.process_new_packets();
        self.broken = processed.is_err();
        processed.map(drop).map_err(io::Error::other)
    }
}

impl Writing {
    /// As a socket's.
    pub(crate) async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(shared) = &self.tls else {
            return self.half.write_all(bytes).await;
        };
        let mut rest = bytes;
        while !rest.is_empty() {
            let mut sealed = Vec::new();
            {
                let mut connection = lock(shared);
                let n = connection.writer().write(rest)?;
                rest = rest.get(n..).unwrap_or_default();
                while connection.wants_write() {
                    connection.write_tls(&mut sealed)?;
                }
            }
            self.half.write_all(&sealed).await?;
        }
        Ok(())
    }

    /// Says that no more comes.
    pub(crate) async fn shutdown(&mut self) -> io::Result<()> {
        self.half.shutdown().await
    }
}

async fn open(
    mut stream: TcpStream,
    mut connection: Connection,
) -> Result<(Reading, Writing, Met), String> {
    shake(&mut stream, &mut connection).await?;
    let shown = connection.peer_certificates().unwrap_or_default();
    let key = shown.first().and_then(|shown| public_key(shown));
    let key = key.ok_or("it shows no key")?;
    let binding = connection.export_keying_material([0; 32], BINDING, None);
    let binding = binding.map_err(|e| e.to_string())?;
    let shared = Arc::new(Mutex::new(connection));
    let (read, write) = stream.into_split();
    let reading = Reading {
        half: read,
        tls: Some(Tls {
            shared: shared.clone(),
            chunk: vec![0; CHUNK_BYTES].into_boxed_slice(),
            start: 0,
            end: 0,
            broken: false,
        }),
    };
    let writing = Writing {
        half: write,
        tls: Some(shared),
    };
    Ok((reading, writing, Met { key, binding }))
}

async fn shake(stream: &mut TcpStream, connection: &mut Connection) -> Result<(), String> {
    let mut before = 0;
    let mut chunk = [0; 2048];
    loop {
        flush(stream, connection).await?;
        if !connection.is_handshaking() {
            return Ok(());
        }
        let n = match stream.read(&mut chunk).await {
            Ok(0) => return Err("it closed the connection during the handshake".into()),
            Ok(n) => n,
            Err(e) => return Err(e.to_string()),
        };
        let mut rest = chunk.get(..n).unwrap_or_default();
        if before == 0
            && let Some(what) = no_tls(rest)
        {
            return Err(what);
        }
        before += n;
        if before >= HANDSHAKE_LIMIT {
            return Err("a handshake without an end".into());
        }
        while !rest.is_empty() {
            connection.read_tls(&mut rest).map_err(|e| e.to_string())?;
            if let Err(e) = connection.process_new_packets() {
                // What is wrong is said to the other end too, as far as that is possible.
                let _ = flush(stream, connection).await;
                return Err(e.to_string());
            }
        }
    }
}

async fn flush(stream: &mut TcpStream, connection: &mut Connection) -> Result<(), String> {
    let mut sealed = Vec::new();
    while connection.wants_write() {
        connection
            .write_tls(&mut sealed)
            .map_err(|e| e.to_string())?;
    }
    stream.write_all(&sealed).await.map_err(|e| e.to_string())
}

fn lock(shared: &Shared) -> MutexGuard<'_, Connection> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the binding of a session is derived under.
const BINDING: &[u8] = b"EXPORTER-PCCL-ticket";

/// Bytes of the socket that are held: most messages have a few dozen.
const CHUNK_BYTES: usize = 4 * 1024;
