//! The master of a run, for Python.

use std::sync::{Mutex, PoisonError};

use pccl_core::Master as CoreMaster;
use pccl_core::config::{MasterConfig, Timing};
use pyo3::prelude::*;

use crate::errors::{Function, exception};
use crate::exit::detached;
use crate::home::Home;
use crate::wait::seconds;

/// A running master. Stops, in good order, when it is destroyed.
#[pyclass(frozen, module = "pccl._native")]
pub(crate) struct Master {
    address: String,
    master: Mutex<Option<CoreMaster>>,
    home: Home,
}

#[pymethods]
impl Master {
    #[new]
    fn new(py: Python<'_>, listen: &str, peer_timeout: Option<f64>) -> PyResult<Self> {
        let function = Function::Master("MasterNode.run");
        let mut config = MasterConfig::default();
        if let Some(limit) = seconds(py, function, peer_timeout)? {
            config.timing = Timing::from_peer_timeout(limit);
        }
        let master = detached(py, || CoreMaster::start(listen, config))
            .map_err(|error| exception(py, function, &error))?;
        Ok(Self {
            address: master.local_addr().to_string(),
            master: Mutex::new(Some(master)),
            home: Home::here(),
        })
    }

    fn address(&self) -> &str {
        &self.address
    }

    fn status(&self, py: Python<'_>) -> PyResult<String> {
        self.home.check(py, Function::Master("MasterNode.status"))?;
        let status = detached(py, || self.with(CoreMaster::status));
        let status = status.unwrap_or_else(|| Ok(r#"{"ended":true}"#.into()));
        status.map_err(|error| exception(py, Function::Master("MasterNode.status"), &error))
    }

    /// Whether it has not ended.
    fn is_running(&self, py: Python<'_>) -> bool {
        self.home.is_here()
            && detached(py, || self.with(|master| master.status().is_ok())).unwrap_or(false)
    }

    /// Stops it and waits for the end.
    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        self.home
            .check(py, Function::Master("MasterNode.interrupt"))?;
        detached(py, || {
            let master = self
                .master
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take();
            drop(master);
        });
        Ok(())
    }
}

impl Master {
    fn with<T>(&self, look: impl FnOnce(&CoreMaster) -> T) -> Option<T> {
        let master = self.master.lock().unwrap_or_else(PoisonError::into_inner);
        master.as_ref().map(look)
    }
}

impl Drop for Master {
    fn drop(&mut self) {
        let master = self
            .master
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if !self.home.is_here() {
            std::mem::forget(master);
        } else if master.is_some() {
            Python::attach(|py| detached(py, || drop(master)));
        }
    }
}
