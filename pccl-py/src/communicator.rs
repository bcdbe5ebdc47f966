//! A peer of a run, for Python.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use pccl_core::config::PeerConfig;
use pccl_core::error::{Error, UsageError};
use pccl_core::ids::{PeerGroup, Tag};
use pccl_core::{Begin, CallOptions, Communicator as CoreCommunicator};
use pyo3::prelude::*;

use crate::batch::{Item, reduce_all};
use crate::buffers::{Memory, View};
use crate::errors::{Function, argument_error, exception};
use crate::events::Events;
use crate::exit::detached;
use crate::home::Home;
use crate::operation::{Operation, What, descriptor};
use crate::sync::{Tensor, synchronise};
use crate::wait::{seconds, wait};

/// What a synchronisation moved: bytes given, bytes fetched, the revision, who gave how much, and
/// what differed: tensor, first byte, the one behind the last, who had the elected content, since
/// which revision.
type Moved = (u64, u64, u64, Vec<(u64, u64)>, Vec<Differed>);

type Differed = (String, u64, u64, Vec<u64>, Option<u64>);

/// A peer. Leaves the run, in good order, when it is destroyed.
#[pyclass(frozen, module = "pccl._native")]
pub(crate) struct Communicator {
    core: Mutex<Option<Arc<CoreCommunicator>>>,
    closed: Arc<AtomicBool>,
    home: Home,
}

#[pymethods]
impl Communicator {
    #[new]
    fn new(
        py: Python<'_>,
        address: &str,
        group: u32,
        pool: u16,
        name: String,
        segment: Option<u32>,
        listen: Option<&str>,
    ) -> PyResult<Self> {
        let function = Function::Other("Communicator");
        let mut config = PeerConfig {
            name,
            group: PeerGroup(group),
            pool,
            ..PeerConfig::default()
        };
        if let Some(segment) = segment {
            config.segment = segment;
        }
        config.listen = listen
            .map(|text| {
                text.parse().map_err(|error| {
                    argument_error(py, function.name(), format!("listen {text:?}: {error}"))
                })
            })
            .transpose()?;
        let core = CoreCommunicator::new(address, config)
            .map_err(|error| exception(py, function, &error))?;
        Ok(Self {
            core: Mutex::new(Some(Arc::new(core))),
            closed: Arc::default(),
            home: Home::here(),
        })
    }

    fn connect(&self, py: Python<'_>, limit: Option<f64>) -> PyResult<()> {
        self.call(py, Function::Connect, Begin::Connect, limit)?;
        Ok(())
    }

    fn update_topology(&self, py: Python<'_>, limit: Option<f64>) -> PyResult<()> {
        self.call(py, Function::UpdateTopology, Begin::UpdateTopology, limit)?;
        Ok(())
    }

    fn are_peers_pending(&self, py: Python<'_>, limit: Option<f64>) -> PyResult<bool> {
        self.call(py, Function::ArePeersPending, Begin::ArePeersPending, limit)
    }

    fn optimize_topology(&self, py: Python<'_>, limit: Option<f64>) -> PyResult<()> {
        let function = Function::OptimizeTopology;
        self.call(py, function, Begin::OptimizeTopology, limit)?;
        Ok(())
    }

    /// Members of the run, members of the group, groups, members of the largest group.
    fn attributes(&self, py: Python<'_>) -> PyResult<(u32, u32, u32, u32)> {
        let seen = self
            .core(py, Function::Other("get_attribute"))?
            .attributes();
        Ok((
            seen.global_world_size,
            seen.group_world_size,
            seen.peer_groups,
            seen.largest_group_world_size,
        ))
    }

    fn member_id(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        let core = self.core(py, Function::Other("member_id"))?;
        Ok(core.member_id().map(|id| id.0))
    }

    fn members(&self, py: Python<'_>) -> PyResult<Vec<u64>> {
        let core = self.core(py, Function::Other("members"))?;
        Ok(core
            .members()
            .into_iter()
            .map(|member| member.id.0)
            .collect())
    }

    /// Starts an all-reduce. The tensors are kept alive by what is returned.
    #[expect(clippy::too_many_arguments)]
    fn all_reduce(
        &self,
        py: Python<'_>,
        function: &str,
        send: View<'_>,
        recv: View<'_>,
        what: What,
        tag: u64,
        limit: Option<f64>,
    ) -> PyResult<Operation> {
        let called = Function::reduce(function);
        let core = self.core(py, called)?;
        let limit = seconds(py, called, limit)?;
        let (send, recv) = (Memory::of(send), Memory::of(recv));
        let descriptor = descriptor(py, function, &send, &recv, what)?;
        Operation::start(
            py,
            called,
            &core,
            send,
            recv,
            descriptor,
            Tag(tag),
            CallOptions { limit },
        )
    }

    /// Carries out several all-reduces, those that fail again.
    fn all_reduce_multiple(
        &self,
        py: Python<'_>,
        items: Vec<Item<'_>>,
        max_in_flight: usize,
        limit: Option<f64>,
    ) -> PyResult<(u32, u64, u64)> {
        let function = Function::reduce("all_reduce_multiple_with_retry");
        let core = self.core(py, function)?;
        let options = CallOptions {
            limit: seconds(py, function, limit)?,
        };
        let result = reduce_all(py, &core, items, max_in_flight, options);
        // After a `leave` elsewhere this is the last one, whose end takes a while.
        detached(py, || drop(core));
        result
    }

    /// Bytes served, bytes fetched, revision.
    fn sync_shared_state(
        &self,
        py: Python<'_>,
        tensors: Vec<Tensor<'_>>,
        revision: u64,
        strategy: u8,
        limit: Option<f64>,
    ) -> PyResult<Moved> {
        let core = self.core(py, Function::Sync)?;
        let options = CallOptions {
            limit: seconds(py, Function::Sync, limit)?,
        };
        let info = synchronise(py, &core, tensors, revision, strategy, options);
        // After a `leave` elsewhere this is the last one, whose end takes a while.
        detached(py, || drop(core));
        let info = info?;
        let sources = info.sources.iter().map(|(id, bytes)| (id.0, *bytes));
        let divergences = info.divergences.into_iter().map(|d| {
            let holders = d.holders.iter().map(|id| id.0).collect();
            (d.key, d.bytes.start, d.bytes.end, holders, d.since)
        });
        Ok((
            info.tx_bytes,
            info.rx_bytes,
            info.revision,
            sources.collect(),
            divergences.collect(),
        ))
    }

    fn sync_progress(&self, py: Python<'_>) -> PyResult<Option<(u64, u64, f64)>> {
        let core = self.core(py, Function::Other("sync_progress"))?;
        let progress = core.sync_progress();
        Ok(progress.map(|p| (p.total, p.fetched, p.elapsed.as_secs_f64())))
    }

    fn events(&self, py: Python<'_>) -> PyResult<Events> {
        let core = self.core(py, Function::Other("events"))?;
        Ok(Events::new(core.events(), self.closed.clone()))
    }

    /// Leaves the run and ends its threads.
    fn leave(&self, py: Python<'_>) -> PyResult<()> {
        self.home.check(py, Function::Other("leave"))?;
        detached(py, || self.close());
        Ok(())
    }
}

impl Communicator {
    fn core(&self, py: Python<'_>, function: Function) -> PyResult<Arc<CoreCommunicator>> {
        self.home.check(py, function)?;
        let core = self.core.lock().unwrap_or_else(PoisonError::into_inner);
        core.clone()
            .ok_or_else(|| exception(py, function, &Error::Usage(UsageError::Closed)))
    }

    fn call(
        &self,
        py: Python<'_>,
        function: Function,
        call: Begin,
        limit: Option<f64>,
    ) -> PyResult<bool> {
        let limit = seconds(py, function, limit)?;
        let begun = self.core(py, function)?.begin(call, CallOptions { limit });
        Ok(wait(py, function, &begun, None)?.unwrap_or(false))
    }

    fn close(&self) {
        let core = self
            .core
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(core) = core {
            if Arc::strong_count(&core) > 1 {
                // Other threads are in calls that hold it: these end when there is no run any more.
                // That it was left already is as good.
                let _ = core.leave();
            }
            drop(core);
        }
        self.closed.store(true, Ordering::Release);
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if !self.home.is_here() {
            // What the parent had is left as it is: there are no threads to end.
            let core = self.core.get_mut().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget(core.take());
        } else if !self.closed.load(Ordering::Acquire) {
            // Leaving takes a round trip: other Python threads may run meanwhile.
            Python::attach(|py| detached(py, || self.close()));
        }
    }
}
