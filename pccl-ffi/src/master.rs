//! Masters: making, running, ending.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pccl_core::Master;
use pccl_core::config::{MasterConfig, Timing};

use crate::arguments::{address, growing, output, text};
use crate::entry::run;
use crate::failure::{Call, Code, Failure};
use crate::layout::{self, Enum, MasterHandle, SocketAddress};
use crate::registry::Registry;
use crate::{memory, signals};

/// Makes a master that does not listen yet.
///
/// # Safety
///
/// Unless null, `master_out` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcclCreateMaster(
    listen_address: SocketAddress,
    master_out: *mut *mut MasterHandle,
) -> Enum {
    run("pcclCreateMaster", || {
        // SAFETY: the caller's promise.
        let out = unsafe { output(master_out, "master_out") }?;
        let plan = Plan {
            listen: address(&listen_address)?,
            any_port: false,
            config: MasterConfig::default(),
        };
        out.set(create(plan)?);
        Ok(())
    })
}

/// Makes a master with settings that PCCL 1.0 did not have.
///
/// # Safety
///
/// Unless null, `config` holds as many bytes as it says, its texts end with a zero, and
/// `master_out` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcclCreateMasterEx(
    config: *const layout::MasterConfig,
    master_out: *mut *mut MasterHandle,
) -> Enum {
    run("pcclCreateMasterEx", || {
        // SAFETY: the caller's promise.
        let (out, config) = unsafe {
            (
                output(master_out, "master_out")?,
                growing(config, "config")?,
            )
        };
        // SAFETY: the caller's promise.
        let listen = unsafe { text(config.listen, "listen") }?;
        let mut settings = MasterConfig::default();
        if config.peer_timeout_ms > 0 {
            if !(SHORTEST_MS..=LONGEST_MS).contains(&config.peer_timeout_ms) {
                return Err(Failure::argument(format!(
                    "peer_timeout_ms must be from {SHORTEST_MS} to {LONGEST_MS}"
                )));
            }
            let timeout = Duration::from_millis(config.peer_timeout_ms);
            settings.timing = Timing::from_peer_timeout(timeout);
        }
        let plan = Plan {
            listen: listen.ok_or_else(|| Failure::argument("listen is null"))?,
            any_port: true,
            config: settings,
        };
        out.set(create(plan)?);
        Ok(())
    })
}

/// Starts a master.
///
/// # Safety
///
/// None: unknown pointers are an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcclRunMaster(master: *mut MasterHandle) -> Enum {
    run("pcclRunMaster", || {
        let instance = find(master)?;
        let mut state = instance.state();
        let State::Planned(plan) = &*state else {
            return Err(Failure::usage("the master was run before"));
        };
        memory::enough()?;
        let started = plan.start();
        let failed = started.as_ref().err().cloned();
        *state = started.map_or(State::Failed, |running| State::Running(Arc::new(running)));
        failed.map_or(Ok(()), Err)
    })
}

/// Asks a master to end.
///
/// # Safety
///
/// None: unknown pointers are an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcclInterruptMaster(master: *mut MasterHandle) -> Enum {
    run("pcclInterruptMaster", || {
        (find(master)?.running()?.stop)();
        Ok(())
    })
}

/// Waits for the end of a master.
///
/// # Safety
///
/// None: unknown pointers are an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcclMasterAwaitTermination(master: *mut MasterHandle) -> Enum {
    run("pcclMasterAwaitTermination", || {
        find(master)?.running()?.join()
    })
}

/// Ends a master and frees it.
///
/// # Safety
///
/// None: unknown pointers are an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcclDestroyMaster(master: *mut MasterHandle) -> Enum {
    run("pcclDestroyMaster", || {
        let instance = MASTERS.remove(master).ok_or_else(|| unknown(master))?;
        if instance.process != std::process::id() {
            // Its thread does not exist in this process.
            std::mem::forget(instance);
            return Ok(());
        }
        if let Ok(running) = instance.running() {
            (running.stop)();
            // How it ended has been logged; the instance is freed either way.
            let _ = running.join();
        }
        Ok(())
    })
}

/// The port of a running master.
///
/// # Safety
///
/// Unless null, `port_out` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcclGetMasterPort(
    master: *const MasterHandle,
    port_out: *mut u16,
) -> Enum {
    run("pcclGetMasterPort", || {
        let instance = find(master)?;
        // SAFETY: the caller's promise.
        let out = unsafe { output(port_out, "port_out") }?;
        out.set(instance.running()?.port);
        Ok(())
    })
}

/// What a `pcclMasterInstance_t *` names.
#[derive(Debug)]
struct Instance {
    state: Mutex<State>,
    process: u32,
}

#[derive(Debug)]
enum State {
    Planned(Plan),
    Running(Arc<Running>),
    /// It could not listen: as in PCCL 1.0, such an instance is of no use any more.
    Failed,
}

#[derive(Debug)]
struct Plan {
    listen: String,
    /// Whether port zero means any free one.
    any_port: bool,
    config: MasterConfig,
}

struct Running {
    /// Locked by whoever waits for its end.
    master: Mutex<Master>,
    /// Stops it without the lock.
    stop: Box<dyn Fn() + Send + Sync>,
    port: u16,
}

impl Plan {
    fn start(&self) -> Result<Running, Failure> {
        if !self.any_port && self.listen.ends_with(":0") {
            return Err(Failure::usage("a master needs a port that peers know"));
        }
        let master = signals::blocked(|| Master::start(&self.listen, self.config.clone()))
            .map_err(|error| Call::Master.failure(&error))?;
        Ok(Running {
            port: master.local_addr().port(),
            stop: Box::new(master.stopper()),
            master: Mutex::new(master),
        })
    }
}

impl Instance {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn running(&self) -> Result<Arc<Running>, Failure> {
        match &*self.state() {
            State::Running(running) => Ok(running.clone()),
            State::Planned(_) => Err(Failure::usage("the master was not run")),
            State::Failed => Err(Failure::usage("the master could not be started")),
        }
    }
}

impl Running {
    fn join(&self) -> Result<(), Failure> {
        let mut master = self.master.lock().unwrap_or_else(PoisonError::into_inner);
        let ended = master.join();
        ended
            .map(drop)
            .map_err(|error| Call::Master.failure(&error))
    }
}

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Running")
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}

fn create(plan: Plan) -> Result<*mut MasterHandle, Failure> {
    let instance = Instance {
        state: Mutex::new(State::Planned(plan)),
        process: std::process::id(),
    };
    let no_names = || Failure::new(Code::InternalError, "no names are left for handles");
    MASTERS.insert(instance).ok_or_else(no_names)
}

fn find(pointer: *const MasterHandle) -> Result<Arc<Instance>, Failure> {
    let instance = MASTERS.get(pointer).ok_or_else(|| unknown(pointer))?;
    if instance.process != std::process::id() {
        return Err(Failure::usage(
            "the master belongs to the parent process; make one after the fork",
        ));
    }
    Ok(instance)
}

fn unknown(pointer: *const MasterHandle) -> Failure {
    Failure::argument(if pointer.is_null() {
        "master is null"
    } else {
        "master is none; it may have been destroyed"
    })
}

static MASTERS: Registry<Instance> = Registry::new();

/// Below this, the pauses of an ordinary scheduler would count as losses.
const SHORTEST_MS: u64 = 50;

/// A day: beyond it the limits derived from it mean nothing.
const LONGEST_MS: u64 = 86_400_000;
