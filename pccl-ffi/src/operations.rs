//! Collectives that were launched and not yet awaited.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pccl_core::OpHandle;

use crate::failure::{Code, Failure};

/// The open tags of one communicator.
///
/// A tag is open from its launch until its await has returned, however early the operation itself
/// has ended: programs count on that to find handles that they forgot.
#[derive(Debug, Default)]
pub(crate) struct Operations {
    open: Mutex<BTreeMap<u64, Open>>,
}

#[derive(Debug)]
enum Open {
    /// Being launched, or one of several with retry.
    Reserved,
    /// On its way, or ended; nobody waits for it.
    Launched(Arc<OpHandle>),
    /// A thread waits for it.
    Awaited(Arc<OpHandle>),
}

/// A tag that is taken, until this is dropped.
#[derive(Debug)]
pub(crate) struct Reserved<'a> {
    operations: &'a Operations,
    tag: u64,
}

/// An operation that this thread waits for. Dropping it gives the operation back.
#[derive(Debug)]
pub(crate) struct Awaited<'a> {
    operations: &'a Operations,
    tag: u64,
    handle: Arc<OpHandle>,
}

impl Operations {
    /// Takes a tag for an operation that will be launched.
    pub(crate) fn reserve_launch(&self, tag: u64) -> Result<Reserved<'_>, Failure> {
        let reserved = |open: &&Open| matches!(open, Open::Reserved);
        let launched = {
            let open = self.lock();
            open.len() - open.values().filter(reserved).count()
        };
        if launched >= MOST {
            return Err(Failure::usage(format!(
                "{MOST} operations are open, which is the limit; await some of them first"
            )));
        }
        self.reserve(tag)
    }

    /// Takes a tag.
    pub(crate) fn reserve(&self, tag: u64) -> Result<Reserved<'_>, Failure> {
        let mut open = self.lock();
        if open.contains_key(&tag) {
            return Err(Failure::argument(format!(
                "tag {tag} is in use; await its operation first"
            )));
        }
        open.insert(tag, Open::Reserved);
        Ok(Reserved {
            operations: self,
            tag,
        })
    }

    /// Takes an operation to wait for. Without one, it is as if the operation had failed: what the
    /// interface has always said of a second wait.
    pub(crate) fn take(&self, tag: u64) -> Result<Awaited<'_>, Failure> {
        let mut open = self.lock();
        match open.remove(&tag) {
            Some(Open::Launched(handle)) => {
                open.insert(tag, Open::Awaited(handle.clone()));
                Ok(Awaited {
                    operations: self,
                    tag,
                    handle,
                })
            }
            other => {
                if let Some(other) = other {
                    open.insert(tag, other);
                }
                Err(unknown(tag))
            }
        }
    }

    /// Looks at an operation, whether or not somebody waits for it.
    pub(crate) fn look(&self, tag: u64) -> Result<Arc<OpHandle>, Failure> {
        match self.lock().get(&tag) {
            Some(Open::Launched(handle) | Open::Awaited(handle)) => Ok(handle.clone()),
            Some(Open::Reserved) | None => Err(unknown(tag)),
        }
    }

    /// An error while there are open operations.
    pub(crate) fn none_open(&self) -> Result<(), Failure> {
        let open = self.lock().len();
        if open == 0 {
            return Ok(());
        }
        let text = format!("{open} operations were launched and not awaited");
        Err(Failure::new(Code::PendingAsyncOps, text))
    }

    /// Forgets all of them. Their handles are dropped, which waits for the buffers to be free.
    pub(crate) fn clear(&self) {
        let open = std::mem::take(&mut *self.lock());
        drop(open);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reserved<'_> {
    /// Leaves the tag to an operation that has been launched.
    pub(crate) fn launched(self, handle: OpHandle) {
        let mut open = self.operations.lock();
        open.insert(self.tag, Open::Launched(Arc::new(handle)));
        drop(open);
        std::mem::forget(self);
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.operations.lock().remove(&self.tag);
    }
}

impl Awaited<'_> {
    /// The operation.
    pub(crate) fn handle(&self) -> &OpHandle {
        &self.handle
    }

    /// It has ended and its user knows: the tag is free.
    pub(crate) fn done(self) {
        let ended = self.operations.lock().remove(&self.tag);
        // Outside of the lock: the drop of `self` finds the tag gone.
        drop(ended);
    }
}

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        let mut open = self.operations.lock();
        if let Some(place) = open.get_mut(&self.tag)
            && let Open::Awaited(handle) = place
            // The tag may be another operation's by now.
            && Arc::ptr_eq(handle, &self.handle)
        {
            *place = Open::Launched(self.handle.clone());
        }
    }
}

fn unknown(tag: u64) -> Failure {
    let text = format!("no operation with tag {tag} waits to be awaited; it may have been already");
    Failure::new(Code::RankConnectionLost, text)
}

/// Open operations of a communicator at most; the engine's limit. (Rule 7)
pub(crate) const MOST: usize = 1024;
