//! Errors of the library as the exceptions and result codes of the Python interface.

use pccl_core::error::{Error, UsageError};
use pccl_core::wire::reason::{AbortReason, EvictReason, RequestCause};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyType};

use crate::exit::Inside;

/// Which function failed; decides the code of failures that are not the caller's mistake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Function {
    /// Joining.
    Connect,
    /// Admission of newcomers.
    UpdateTopology,
    /// The query for newcomers.
    ArePeersPending,
    /// Agreement on the order of the ring.
    OptimizeTopology,
    /// A collective, under the name that the user called.
    Reduce(&'static str),
    /// Synchronisation of the shared state.
    Sync,
    /// Anything about a master.
    Master(&'static str),
    /// Anything else.
    Other(&'static str),
}

impl Function {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::UpdateTopology => "update_topology",
            Self::ArePeersPending => "are_peers_pending",
            Self::OptimizeTopology => "optimize_topology",
            Self::Sync => "sync_shared_state",
            Self::Reduce(name) | Self::Master(name) | Self::Other(name) => name,
        }
    }

    /// A collective by the name that the user called.
    pub(crate) fn reduce(name: &str) -> Self {
        Self::Reduce(match name {
            "all_reduce_async" => "all_reduce_async",
            "all_reduce_multiple_with_retry" => "all_reduce_multiple_with_retry",
            _ => "all_reduce",
        })
    }

    /// Code of a failure of the run, the network, or another member.
    fn failed(self) -> u8 {
        match self {
            Self::Connect => code::MASTER_CONNECTION_FAILED,
            Self::UpdateTopology => code::UPDATE_TOPOLOGY_FAILED,
            Self::OptimizeTopology => code::TOPOLOGY_OPTIMIZATION_FAILED,
            Self::Reduce(_) => code::RANK_CONNECTION_LOST,
            Self::ArePeersPending | Self::Sync | Self::Master(_) | Self::Other(_) => {
                code::INVALID_USAGE
            }
        }
    }
}

/// Result codes of the interface. (Rule 23)
mod code {
    pub(super) const INTERNAL_ERROR: u8 = 2;
    pub(super) const INVALID_ARGUMENT: u8 = 3;
    pub(super) const INVALID_USAGE: u8 = 4;
    pub(super) const TOO_FEW_PEERS: u8 = 5;
    pub(super) const MASTER_CONNECTION_FAILED: u8 = 6;
    pub(super) const RANK_CONNECTION_LOST: u8 = 8;
    pub(super) const PENDING_ASYNC_OPS: u8 = 10;
    pub(super) const UPDATE_TOPOLOGY_FAILED: u8 = 11;
    pub(super) const TOPOLOGY_OPTIMIZATION_FAILED: u8 = 12;
}

/// The exception for `error` of `function`: a `pccl.PCCLError` that says who, in which phase, why.
pub(crate) fn exception(py: Python<'_>, function: Function, error: &Error) -> PyErr {
    let _inside = Inside::enter(py);
    match build(py, function, error) {
        Ok(exception) | Err(exception) => exception,
    }
}

/// A `pccl.PCCLError` for a call that is wrong here.
pub(crate) fn invalid_usage(py: Python<'_>, function: Function, why: &str) -> PyErr {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let _inside = Inside::enter(py);
    let made = CLASS
        .import(py, "pccl._errors", "PCCLError")
        .and_then(|class| class.call1((code::INVALID_USAGE, function.name(), why)));
    match made {
        Ok(made) => PyErr::from_value(made),
        Err(error) => error,
    }
}

/// A `pccl.ArgumentError`.
pub(crate) fn argument_error(py: Python<'_>, function: &str, why: String) -> PyErr {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let _inside = Inside::enter(py);
    let made = CLASS
        .import(py, "pccl._errors", "ArgumentError")
        .and_then(|class| class.call1((function, why)));
    match made {
        Ok(made) => PyErr::from_value(made),
        Err(error) => error,
    }
}

fn build(py: Python<'_>, function: Function, error: &Error) -> PyResult<PyErr> {
    if is_argument(function, error) {
        return Ok(argument_error(py, function.name(), error.to_string()));
    }
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let class = CLASS.import(py, "pccl._errors", "PCCLError")?;
    let about = About::of(function, error);
    let named = PyDict::new(py);
    named.set_item("peer", about.peer)?;
    named.set_item("phase", about.phase)?;
    named.set_item("cause", about.cause)?;
    named.set_item("retryable", is_retryable(error))?;
    let positional = (
        result_code(function, error),
        function.name(),
        error.to_string(),
    );
    Ok(PyErr::from_value(class.call(positional, Some(&named))?))
}

fn is_argument(function: Function, error: &Error) -> bool {
    let Error::Usage(usage) = error else {
        return false;
    };
    match usage {
        UsageError::BufferLength { .. }
        | UsageError::PartialOverlap
        | UsageError::Argument { .. } => true,
        // Looked up when it is used: the name may be there at the next try.
        UsageError::Address { .. } => !matches!(function, Function::Connect | Function::Master(_)),
        _ => false,
    }
}

/// Whether it failed for all members alike, who are members still, and may go well next time. State
/// that breaks a rule breaks it the next time as well.
fn is_retryable(error: &Error) -> bool {
    matches!(error, Error::Aborted { reason, .. }
        if !reason.is_mismatch() && !matches!(reason, AbortReason::State { .. }))
}

fn result_code(function: Function, error: &Error) -> u8 {
    match error {
        Error::Usage(usage) => match usage {
            UsageError::OperationsOpen(_) => code::PENDING_ASYNC_OPS,
            UsageError::InUse(_)
            | UsageError::BufferLength { .. }
            | UsageError::PartialOverlap
            | UsageError::Argument { .. } => code::INVALID_ARGUMENT,
            UsageError::Address { .. } => function.failed(),
            _ => code::INVALID_USAGE,
        },
        Error::TooFewPeers => code::TOO_FEW_PEERS,
        Error::Aborted { reason, .. } if reason.is_mismatch() => code::INVALID_ARGUMENT,
        Error::Internal(_) => code::INTERNAL_ERROR,
        _ => function.failed(),
    }
}

/// The parts of a failure that a program may want to look at.
struct About {
    peer: Option<u64>,
    phase: String,
    cause: String,
}

impl About {
    fn of(function: Function, error: &Error) -> Self {
        let (peer, phase, cause) = match error {
            Error::Aborted { what, reason, .. } => {
                (peer_of(reason), what.to_string(), reason.to_string())
            }
            Error::Unreachable { phase, cause, .. } => (None, phase.to_string(), cause.clone()),
            Error::Refused { reason, .. } => (None, "registering".into(), reason.to_string()),
            Error::Evicted(reason) => (
                evictor_of(reason),
                function.name().into(),
                reason.to_string(),
            ),
            other => (None, function.name().into(), other.to_string()),
        };
        Self { peer, phase, cause }
    }
}

fn peer_of(reason: &AbortReason) -> Option<u64> {
    match reason {
        AbortReason::MemberLost { member, .. } => Some(member.0),
        AbortReason::Requested { by, cause, .. } => match cause {
            RequestCause::LaneDied { peer, .. } | RequestCause::BadFrame { peer, .. } => {
                Some(peer.0)
            }
            _ => Some(by.0),
        },
        AbortReason::Diverged { odd } => odd.first().map(|odd| odd.0),
        AbortReason::EdgeBroken { a, .. } => Some(a.0),
        _ => None,
    }
}

fn evictor_of(reason: &EvictReason) -> Option<u64> {
    match reason {
        EvictReason::Unreachable { from } => from.first().map(|from| from.0),
        _ => None,
    }
}
