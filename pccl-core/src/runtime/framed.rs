//! Messages on the two halves of a control connection.
//!
//! Reading gives one message at a time. Writing goes through a queue with a limit and a task that
//! empties it, so that no driver ever waits for a slow reader at the other end.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;

use super::tasks;
use crate::transport::secure::{Reading, Writing};
use crate::trap::{self, Trap};
use crate::wire::frame::{self, Decoder, FrameError, Preamble};

/// The reading half.
pub(crate) struct MessageReader {
    stream: Reading,
    decoder: Decoder,
    chunk: Box<[u8]>,
}

impl MessageReader {
    /// Reads frames of at most `limit` bytes until [`MessageReader::set_limit`].
    pub(crate) fn new(stream: Reading, limit: usize) -> Self {
        Self {
            stream,
            decoder: Decoder::new(limit),
            chunk: vec![0; READ_BYTES].into_boxed_slice(),
        }
    }

    /// From the next frame on, another limit.
    pub(crate) fn set_limit(&mut self, limit: usize) {
        self.decoder.set_limit(limit);
    }

    /// The first bytes of the connection, if they are a preamble. The outer error, of the socket, is
    /// for people.
    pub(crate) async fn preamble(&mut self) -> Result<Result<Preamble, FrameError>, String> {
        loop {
            match self.decoder.preamble() {
                Ok(Some(preamble)) => return Ok(Ok(preamble)),
                Ok(None) => {}
                Err(e) => return Ok(Err(e)),
            }
            self.fill().await?;
        }
    }

    /// The next message. The error is for people: what the socket or the decoder said.
    pub(crate) async fn message<T: DeserializeOwned>(&mut self) -> Result<T, String> {
        loop {
            if let Some(message) = self.decoder.message().map_err(|e| e.to_string())? {
                return Ok(message);
            }
            self.fill().await?;
        }
    }

    /// The first message of somebody who has not shown yet who it is: a long one needs one of the
    /// places that there are for those.
    pub(crate) async fn first_message<T: DeserializeOwned>(
        &mut self,
        places: &Semaphore,
    ) -> Result<T, String> {
        let mut place = None;
        loop {
            if let Some(message) = self.decoder.message().map_err(|e| e.to_string())? {
                return Ok(message);
            }
            if self.decoder.held() > frame::CONTROL_HELLO_AT_ONCE && place.is_none() {
                place = Some(places.acquire().await.map_err(|e| e.to_string())?);
            }
            self.fill().await?;
        }
    }

    /// Reads and forgets until the other end closes: a socket closed with unread input would tell
    /// the other end to drop what it has not read yet.
    pub(crate) async fn discard(&mut self) {
        while let Ok(1..) = self.stream.read(&mut self.chunk).await {}
    }

    async fn fill(&mut self) -> Result<(), String> {
        match self.stream.read(&mut self.chunk).await {
            Ok(0) => Err("the other end closed the connection".into()),
            Ok(n) => {
                self.decoder.feed(self.chunk.get(..n).unwrap_or_default());
                Ok(())
            }
            Err(e) => Err(e.to_string()),
        }
    }
}

/// The writing half: a queue, and the task that empties it.
pub(crate) struct Outbox {
    frames: mpsc::UnboundedSender<Vec<u8>>,
    queued: Arc<AtomicUsize>,
    limit: usize,
    task: JoinHandle<()>,
}

impl Outbox {
    /// Starts the writing task, which calls `broken` if it panics. The queue takes messages while it
    /// holds at most `limit` bytes.
    pub(crate) fn start(
        stream: Writing,
        limit: usize,
        broken: impl FnOnce() + Send + 'static,
    ) -> Self {
        let (frames, queue) = mpsc::unbounded_channel();
        let queued = Arc::new(AtomicUsize::new(0));
        let task = tasks::spawn(write(stream, queue, queued.clone()), broken);
        Self {
            frames,
            queued,
            limit,
            task,
        }
    }

    /// Queues a message. The error says why the connection is of no use any more; that the socket
    /// is broken is the reader's to find out, and no error here.
    pub(crate) fn push<T: Serialize>(&self, message: &T) -> Result<(), String> {
        let queued = self.queued.load(Ordering::Relaxed);
        if queued > self.limit {
            return Err(format!("it does not read: {queued} bytes wait for it"));
        }
        let frame = frame::encode(message, frame::FRAME_LIMIT).map_err(|e| e.to_string())?;
        self.queued.fetch_add(frame.len(), Ordering::Relaxed);
        // A failed send means that the writing task has met a broken socket.
        let _ = self.frames.send(frame);
        Ok(())
    }

    /// Ends the connection in good order: writes what is queued, says that no more comes, and
    /// takes what the other end still sends, for at most `limit`. `reader` is the task that holds
    /// the other half.
    pub(crate) fn close(
        self,
        reader: JoinHandle<MessageReader>,
        limit: Duration,
    ) -> JoinHandle<()> {
        let Self { frames, task, .. } = self;
        drop(frames);
        let write_abort = task.abort_handle();
        let read_abort = reader.abort_handle();
        tokio::spawn(async move {
            let orderly = async {
                let _ = task.await;
                if let Ok(mut reader) = reader.await {
                    reader.discard().await;
                }
            };
            if tokio::time::timeout(limit, orderly).await.is_err() {
                write_abort.abort();
                read_abort.abort();
            }
        })
    }
}

impl Outbox {
    /// Ends the connection at once; what is queued is lost.
    pub(crate) fn abort(self) {
        self.task.abort();
    }
}

async fn write(
    mut stream: Writing,
    mut queue: mpsc::UnboundedReceiver<Vec<u8>>,
    queued: Arc<AtomicUsize>,
) {
    while let Some(mut bytes) = queue.recv().await {
        trap::pass(Trap::Write);
        while bytes.len() < CHUNK_BYTES {
            match queue.try_recv() {
                Ok(more) => bytes.extend_from_slice(&more),
                Err(_) => break,
            }
        }
        if stream.write_all(&bytes).await.is_err() {
            return;
        }
        queued.fetch_sub(bytes.len(), Ordering::Relaxed);
    }
    let _ = stream.shutdown().await;
}

/// Bytes written at a time: most messages are a few dozen, the largest come rarely.
const CHUNK_BYTES: usize = 16 * 1024;

/// Bytes read at a time. Each connection holds as many, also one that has not said who it is.
const READ_BYTES: usize = 4 * 1024;
