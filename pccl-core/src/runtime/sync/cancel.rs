//! Ends threads that block in sockets.

use std::collections::BTreeMap;
use std::net::{Shutdown, TcpStream};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

/// Knows the sockets that threads block in, and closes them under them.
#[derive(Debug)]
pub(super) struct Cancel {
    sockets: Mutex<Sockets>,
    over: Condvar,
    ended: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct Sockets {
    ended: bool,
    next: u64,
    open: BTreeMap<u64, TcpStream>,
}

/// A socket is known until this is dropped.
#[derive(Debug)]
pub(super) struct Registered<'c> {
    cancel: &'c Cancel,
    number: u64,
}

impl Cancel {
    pub(super) fn new() -> Self {
        Self {
            sockets: Mutex::default(),
            over: Condvar::new(),
            ended: watch::Sender::new(false),
        }
    }

    /// Makes a socket known. The error says that it is too late, or what the system said.
    pub(super) fn register(&self, stream: &TcpStream) -> Result<Registered<'_>, String> {
        let copy = stream.try_clone().map_err(|e| e.to_string())?;
        let mut sockets = self.sockets();
        if sockets.ended {
            return Err("the synchronisation has ended".into());
        }
        let number = sockets.next;
        sockets.next += 1;
        sockets.open.insert(number, copy);
        Ok(Registered {
            cancel: self,
            number,
        })
    }

    /// Ends all that blocks, now and later.
    pub(super) fn end(&self) {
        let mut sockets = self.sockets();
        sockets.ended = true;
        for stream in sockets.open.values() {
            // One that is closed already blocks nobody.
            let _ = stream.shutdown(Shutdown::Both);
        }
        self.over.notify_all();
        self.ended.send_replace(true);
    }

    /// Waits for so long, or until all ends.
    pub(super) fn pause(&self, span: Duration) {
        let sockets = self.sockets();
        let waited = self
            .over
            .wait_timeout_while(sockets, span, |sockets| !sockets.ended);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// Completes when all ends.
    pub(super) async fn ended(&self) {
        let mut ended = self.ended.subscribe();
        // The sender is `self`, so there is no error.
        let _ = ended.wait_for(|ended| *ended).await;
    }

    fn sockets(&self) -> MutexGuard<'_, Sockets> {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        self.cancel.sockets().open.remove(&self.number);
    }
}
