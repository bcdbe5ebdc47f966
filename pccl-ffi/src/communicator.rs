//! Communicators: making, joining, unanimous calls, leaving.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pccl_core::config::{PeerConfig, Place};
use pccl_core::error::{Error, UsageError};
use pccl_core::ids::PeerGroup;
use pccl_core::{Begin, CallOptions, Communicator, SyncInfo};

use crate::arguments::{address, growing, input, limit, output, text};
use crate::entry::run_initialized;
use crate::failure::{Call, Code, Failure};
use crate::layout::{CommConfig, CommCreateParams, CommHandle, Enum};
use crate::operations::Operations;
use crate::registry::Registry;
use crate::{memory, signals};

/// Makes a communicator.
///
/// # Safety
///
/// Unless null, `params` holds a value and `comm_out` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcclCreateCommunicator(
    params: *const CommCreateParams,
    comm_out: *mut *mut CommHandle,
) -> Enum {
    run_initialized("pcclCreateCommunicator", || {
        // SAFETY: the caller's promise.
        let (out, params) = unsafe { (output(comm_out, "comm_out")?, input(params, "params")?) };
        let config = PeerConfig {
            group: PeerGroup(params.peer_group),
            pool: pool(params.p2p_connection_pool_size),
            identity: std::env::var_os(IDENTITY).map(Into::into),
            ..PeerConfig::default()
        };
        // A ticket says where the master is.
        let master = match ticket()? {
            Some(ticket) => ticket,
            None => address(&params.master_address)?,
        };
        out.set(create(&master, config, 0)?);
        Ok(())
    })
}

/// Makes a communicator with settings that PCCL 1.0 did not have.
///
/// # Safety
///
/// Unless null, `config` holds as many bytes as it says, its texts end with a zero, and `comm_out`
/// can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcclCreateCommunicatorEx(
    config: *const CommConfig,
    comm_out: *mut *mut CommHandle,
) -> Enum {
    run_initialized("pcclCreateCommunicatorEx", || {
        // SAFETY: the caller's promise.
        let (out, config) = unsafe { (output(comm_out, "comm_out")?, growing(config, "config")?) };
        // SAFETY: the caller's promise about texts.
        let (master, peer) = unsafe { settings(&config) }?;
        out.set(create(&master, peer, config.time_limit_ms)?);
        Ok(())
    })
}

/// Leaves the run and frees the communicator.
///
/// # Safety
///
/// None: unknown pointers are an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcclDestroyCommunicator(communicator: *mut CommHandle) -> Enum {
    run_initialized("pcclDestroyCommunicator", || {
        let comm = COMMS
            .remove(communicator)
            .ok_or_else(|| unknown(communicator))?;
        if comm.process == std::process::id() {
            comm.close();
        } else {
            // The parent's threads do not exist in this process: nothing here could end them.
            std::mem::forget(comm);
        }
        Ok(())
    })
}

/// A size of the world around the caller.
///
/// # Safety
///
/// Unless null, `value_out` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcclGetAttribute(
    communicator: *const CommHandle,
    attribute: Enum,
    value_out: *mut Enum,
) -> Enum {
    run_initialized("pcclGetAttribute", || {
        let comm = connected(communicator)?;
        // SAFETY: the caller's promise.
        let out = unsafe { output(value_out, "value_out") }?;
        let seen = comm.lease()?.attributes();
        let value = match attribute {
            1 => seen.global_world_size,
            2 => seen.group_world_size,
            3 => seen.peer_groups,
            4 => seen.largest_group_world_size,
            other => {
                return Err(Failure::argument(format!(
                    "attribute is {other}, which is no pcclAttribute_t"
                )));
            }
        };
        out.set(Enum::try_from(value).unwrap_or(Enum::MAX));
        Ok(())
    })
}

/// Joins the run.
///
/// # Safety
///
/// None: unknown pointers are an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcclConnect(communicator: *mut CommHandle) -> Enum {
    run_initialized("pcclConnect", || {
        let comm = find(communicator)?;
        comm.call(Begin::Connect, Call::Connect)?;
        comm.connected.store(true, Ordering::Release);
        Ok(())
    })
}

/// Admits newcomers.
///
/// # Safety
///
/// None: unknown pointers are an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcclUpdateTopology(communicator: *mut CommHandle) -> Enum {
    run_initialized("pcclUpdateTopology", || {
        let comm = connected(communicator)?;
        comm.operations.none_open()?;
        comm.call(Begin::UpdateTopology, Call::Update).map(drop)
    })
}

/// Whether newcomers wait.
///
/// # Safety
///
/// Unless null, `pending_out` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcclArePeersPending(
    communicator: *const CommHandle,
    pending_out: *mut bool,
) -> Enum {
    run_initialized("pcclArePeersPending", || {
        let comm = find(communicator)?;
        // SAFETY: the caller's promise.
        let out = unsafe { output(pending_out, "pending_out") }?;
        comm.check_connected()?;
        out.set(comm.call(Begin::ArePeersPending, Call::Pending)?);
        Ok(())
    })
}

/// Settles on an order of the ring.
///
/// # Safety
///
/// None: unknown pointers are an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcclOptimizeTopology(communicator: *const CommHandle) -> Enum {
    run_initialized("pcclOptimizeTopology", || {
        let comm = connected(communicator)?;
        if comm.lease()?.attributes().global_world_size < 2 {
            return Err(Failure::usage(
                "the run has no other member: there is no order to choose",
            ));
        }
        comm.operations.none_open()?;
        comm.call(Begin::OptimizeTopology, Call::Optimize).map(drop)
    })
}

/// Limits later calls.
///
/// # Safety
///
/// None: unknown pointers are an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcclSetTimeLimit(
    communicator: *mut CommHandle,
    milliseconds: u64,
) -> Enum {
    run_initialized("pcclSetTimeLimit", || {
        find(communicator)?
            .limit_ms
            .store(milliseconds, Ordering::Relaxed);
        Ok(())
    })
}

/// What a `pcclComm_t *` names.
#[derive(Debug)]
pub(crate) struct Comm {
    inner: Mutex<Inner>,
    unused: Condvar,
    /// Whether a connect has succeeded. Being evicted does not take that back.
    connected: AtomicBool,
    limit_ms: AtomicU64,
    /// Process that made it; a child that was forked off has no threads for it.
    process: u32,
    /// Collectives that were launched and not awaited.
    pub(crate) operations: Operations,
    /// What the last synchronisation that succeeded did.
    pub(crate) last_sync: Mutex<SyncInfo>,
}

#[derive(Debug)]
struct Inner {
    /// None once it is being destroyed.
    core: Option<Arc<Communicator>>,
    /// Leases out.
    users: usize,
}

/// A communicator that a call uses; its end waits for that.
#[derive(Debug)]
pub(crate) struct Lease<'a> {
    // Dropped first: whoever destroys holds the last one, and so ends the threads.
    core: Arc<Communicator>,
    _user: User<'a>,
}

/// One of those that the end of a communicator waits for.
#[derive(Debug)]
struct User<'a>(&'a Comm);

impl Comm {
    /// Lends the communicator to a call.
    pub(crate) fn lease(&self) -> Result<Lease<'_>, Failure> {
        let mut inner = self.lock();
        let Some(core) = inner.core.clone() else {
            return Err(Failure::usage(UsageError::Closed.to_string()));
        };
        inner.users += 1;
        Ok(Lease {
            core,
            _user: User(self),
        })
    }

    /// What every call is limited to.
    pub(crate) fn limit(&self) -> Option<Duration> {
        limit(self.limit_ms.load(Ordering::Relaxed))
    }

    /// An error if there was no connect.
    pub(crate) fn check_connected(&self) -> Result<(), Failure> {
        if self.connected.load(Ordering::Acquire) {
            return Ok(());
        }
        Err(Failure::usage(UsageError::NotConnected.to_string()))
    }

    fn call(&self, begin: Begin, call: Call) -> Result<bool, Failure> {
        memory::enough()?;
        let options = CallOptions {
            limit: self.limit(),
        };
        // Waiting needs no lease: the communicator's end completes the call.
        let begun = self.lease()?.begin(begin, options);
        begun.wait().map_err(|error| call.failure(&error))
    }

    /// Leaves the run and ends the threads, whatever other threads of the program are doing.
    fn close(&self) {
        let (core, users) = {
            let mut inner = self.lock();
            (inner.core.take(), inner.users)
        };
        let Some(core) = core else { return };
        if users > 0 {
            // Those that wait in calls with a lease come out when there is no run any more.
            let _ = core.leave();
            let mut inner = self.lock();
            while inner.users > 0 {
                inner = self
                    .unused
                    .wait(inner)
                    .unwrap_or_else(PoisonError::into_inner);
            }
        }
        drop(core);
        self.operations.clear();
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Deref for Lease<'_> {
    type Target = Communicator;

    fn deref(&self) -> &Communicator {
        &self.core
    }
}

impl Drop for User<'_> {
    fn drop(&mut self) {
        self.0.lock().users -= 1;
        self.0.unused.notify_all();
    }
}

/// The communicator that a pointer names.
pub(crate) fn find(pointer: *const CommHandle) -> Result<Arc<Comm>, Failure> {
    let comm = COMMS.get(pointer).ok_or_else(|| unknown(pointer))?;
    if comm.process != std::process::id() {
        return Err(Failure::usage(
            "the communicator belongs to the parent process; make one after the fork",
        ));
    }
    Ok(comm)
}

/// As [`find`], and connected.
pub(crate) fn connected(pointer: *const CommHandle) -> Result<Arc<Comm>, Failure> {
    let comm = find(pointer)?;
    comm.check_connected()?;
    Ok(comm)
}

fn unknown(pointer: *const CommHandle) -> Failure {
    Failure::argument(if pointer.is_null() {
        "communicator is null"
    } else {
        "communicator is none; it may have been destroyed"
    })
}

fn create(master: &str, config: PeerConfig, limit_ms: u64) -> Result<*mut CommHandle, Failure> {
    memory::enough()?;
    let core = signals::blocked(|| Communicator::new(master, config))
        .map_err(|error| Call::Create.failure(&error))?;
    let comm = Comm {
        inner: Mutex::new(Inner {
            core: Some(Arc::new(core)),
            users: 0,
        }),
        unused: Condvar::new(),
        connected: AtomicBool::new(false),
        limit_ms: AtomicU64::new(limit_ms),
        process: std::process::id(),
        operations: Operations::default(),
        last_sync: Mutex::default(),
    };
    COMMS.insert(comm).ok_or_else(no_names)
}

/// The master's address, and the settings.
///
/// # Safety
///
/// Texts end with a zero.
unsafe fn settings(config: &CommConfig) -> Result<(String, PeerConfig), Failure> {
    // SAFETY: the caller's promise.
    let (master, name, listen, announce) = unsafe {
        (
            text(config.master, "master")?,
            text(config.name, "name")?,
            text(config.listen, "listen")?,
            text(config.announce, "announce")?,
        )
    };
    let master = match ticket()? {
        Some(ticket) => ticket,
        None => master.ok_or_else(|| Failure::argument("master is null"))?,
    };
    if config.reserved != 0 {
        return Err(Failure::argument("reserved is not zero"));
    }
    let mut peer = PeerConfig {
        name: name.unwrap_or_default(),
        group: PeerGroup(config.peer_group),
        pool: pool(config.pool_size),
        identity: std::env::var_os(IDENTITY).map(Into::into),
        ..PeerConfig::default()
    };
    peer.listen = listen.map(|text| place(&text, "listen")).transpose()?;
    if let Some(announce) = announce {
        let addresses = announce.split(',').map(str::trim);
        peer.announce = addresses
            .map(|text| place(text, "announce"))
            .collect::<Result<_, _>>()?;
    }
    if config.segment_bytes > 0 {
        peer.segment = config.segment_bytes;
    }
    Ok((master, peer))
}

/// The ticket of the environment, which wins over addresses in the program: so a program that knows
/// nothing of tickets can use one.
fn ticket() -> Result<Option<String>, Failure> {
    match std::env::var(TICKET) {
        Ok(ticket) if ticket.trim().is_empty() => Ok(None),
        Ok(ticket) => Ok(Some(ticket)),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(std::env::VarError::NotUnicode(_)) => Err(Failure::argument("PCCL_TICKET is no text")),
    }
}

fn place(text: &str, name: &str) -> Result<Place, Failure> {
    let parsed = text.parse::<Place>();
    parsed.map_err(|cause| Failure::argument(format!("{name} {text:?}: {cause}")))
}

/// As many connections as asked for, within what the library counts with.
fn pool(asked: u32) -> u16 {
    u16::try_from(asked).unwrap_or(u16::MAX)
}

fn no_names() -> Failure {
    let error = Error::Internal("no names are left for handles".into());
    Failure::new(Code::InternalError, error.to_string())
}

/// Variable of the environment with a join ticket.
const TICKET: &str = "PCCL_TICKET";

/// And with the file that keeps the own key pair.
const IDENTITY: &str = "PCCL_IDENTITY";

static COMMS: Registry<Comm> = Registry::new();
