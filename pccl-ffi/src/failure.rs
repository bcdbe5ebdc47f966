//! Result codes: which failure of which function is which number.

use pccl_core::error::{Error, UsageError};

/// `pcclResult_t`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i32)]
pub enum Code {
    /// Done.
    Success = 0,
    /// `pcclInit` was not called.
    NotInitialized = 1,
    /// A fault of the library, or the system refused a resource.
    InternalError = 2,
    /// An argument is wrong, or members' arguments differ.
    InvalidArgument = 3,
    /// The call does not fit the state of things.
    InvalidUsage = 4,
    /// The group has no other member.
    TooFewPeers = 5,
    /// Joining failed.
    MasterConnectionFailed = 6,
    /// In the interface, and given by no path.
    RankConnectionFailed = 7,
    /// A collective failed at all members.
    RankConnectionLost = 8,
    /// In the interface, and given by no path.
    NoSharedStateAvailable = 9,
    /// Collectives were launched and not awaited.
    PendingAsyncOps = 10,
    /// Admission failed.
    UpdateTopologyFailed = 11,
    /// Settling on an order failed.
    TopologyOptimizationFailed = 12,
}

impl Code {
    /// All of them; the place is the number.
    pub const ALL: [Self; 13] = [
        Self::Success,
        Self::NotInitialized,
        Self::InternalError,
        Self::InvalidArgument,
        Self::InvalidUsage,
        Self::TooFewPeers,
        Self::MasterConnectionFailed,
        Self::RankConnectionFailed,
        Self::RankConnectionLost,
        Self::NoSharedStateAvailable,
        Self::PendingAsyncOps,
        Self::UpdateTopologyFailed,
        Self::TopologyOptimizationFailed,
    ];

    /// The name in the header.
    pub fn name(self) -> &'static std::ffi::CStr {
        match self {
            Self::Success => c"pcclSuccess",
            Self::NotInitialized => c"pcclNotInitialized",
            Self::InternalError => c"pcclInternalError",
            Self::InvalidArgument => c"pcclInvalidArgument",
            Self::InvalidUsage => c"pcclInvalidUsage",
            Self::TooFewPeers => c"pcclTooFewPeers",
            Self::MasterConnectionFailed => c"pcclMasterConnectionFailed",
            Self::RankConnectionFailed => c"pcclRankConnectionFailed",
            Self::RankConnectionLost => c"pcclRankConnectionLost",
            Self::NoSharedStateAvailable => c"pcclNoSharedStateAvailable",
            Self::PendingAsyncOps => c"pcclPendingAsyncOps",
            Self::UpdateTopologyFailed => c"pcclUpdateTopologyFailed",
            Self::TopologyOptimizationFailed => c"pcclTopologyOptimizationFailed",
        }
    }
}

/// A call that did not succeed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The result.
    pub code: Code,
    /// What `pcclGetLastError` says after the function's name.
    pub text: String,
}

impl Failure {
    /// A failure that is found here.
    pub(crate) fn new(code: Code, text: impl Into<String>) -> Self {
        Self {
            code,
            text: text.into(),
        }
    }

    /// An argument that cannot be meant.
    pub(crate) fn argument(text: impl Into<String>) -> Self {
        Self::new(Code::InvalidArgument, text)
    }

    /// A call that does not fit.
    pub(crate) fn usage(text: impl Into<String>) -> Self {
        Self::new(Code::InvalidUsage, text)
    }
}

/// Groups of functions that turn the same failures into the same codes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Call {
    /// Making a communicator.
    Create,
    /// Joining.
    Connect,
    /// Admission.
    Update,
    /// Whether newcomers wait.
    Pending,
    /// Order of the ring.
    Optimize,
    /// Waiting for a collective.
    Reduce,
    /// Synchronisation of the shared state.
    Sync,
    /// A master.
    Master,
}

impl Call {
    /// The code of what goes wrong in the run, in the network or at another member.
    fn failed(self) -> Code {
        match self {
            Self::Connect => Code::MasterConnectionFailed,
            Self::Update => Code::UpdateTopologyFailed,
            Self::Optimize => Code::TopologyOptimizationFailed,
            Self::Reduce => Code::RankConnectionLost,
            Self::Create | Self::Pending | Self::Sync | Self::Master => Code::InvalidUsage,
        }
    }

    /// What the caller is told of `error`.
    pub(crate) fn failure(self, error: &Error) -> Failure {
        Failure::new(self.code(error), error.to_string())
    }

    fn code(self, error: &Error) -> Code {
        match error {
            Error::Internal(_) => Code::InternalError,
            Error::TooFewPeers => Code::TooFewPeers,
            // Mismatch ends retry loops, so it must not look like a failure of the network.
            // (Rules 6 and 23)
            Error::Aborted { reason, .. } if reason.is_mismatch() => Code::InvalidArgument,
            Error::Usage(usage) => self.usage(usage),
            _ => self.failed(),
        }
    }

    fn usage(self, usage: &UsageError) -> Code {
        match usage {
            UsageError::OperationsOpen(_) => Code::PendingAsyncOps,
            UsageError::AlreadyConnected | UsageError::CallOpen(_) => Code::InvalidUsage,
            // An address is looked up only when connecting, and may be there at the next try.
            UsageError::Address { .. } => match self {
                Self::Connect => Code::MasterConnectionFailed,
                Self::Master => Code::InvalidUsage,
                _ => Code::InvalidArgument,
            },
            UsageError::InUse(_)
            | UsageError::BufferLength { .. }
            | UsageError::PartialOverlap
            | UsageError::Argument { .. } => Code::InvalidArgument,
            UsageError::TooMany { .. } => Code::InvalidUsage,
            // Not connected any more, or destroyed while it waited.
            _ => self.failed(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pccl_core::types::{Attributes, OpKey, OpKind, UnanimousCall};
    use pccl_core::wire::reason::{AbortReason, EvictReason, LossCause, WaitsIn};
    use pccl_core::{ids, wire};

    const RUN: [Call; 5] = [
        Call::Connect,
        Call::Update,
        Call::Pending,
        Call::Optimize,
        Call::Reduce,
    ];

    fn aborted(reason: AbortReason) -> Error {
        Error::Aborted {
            what: WaitsIn::Call(UnanimousCall::UpdateTopology),
            reason,
            stamp: wire::control::Stamp {
                attributes: Attributes::ALONE,
                ..Default::default()
            },
        }
    }

    #[test]
    fn what_goes_wrong_in_the_run_has_the_function_s_own_code() {
        let lost = aborted(AbortReason::MemberLost {
            member: ids::MemberId(3),
            name: "x".into(),
            cause: LossCause::Died,
        });
        let evicted = Error::Evicted(EvictReason::Operator);
        let stopped = Error::MasterStopped {
            address: "a:1".into(),
        };
        for error in [lost, evicted, stopped, Error::Abandoned] {
            let codes = RUN.map(|call| call.failure(&error).code as i32);
            assert_eq!(codes, [6, 11, 4, 12, 8], "{error}");
        }
    }

    #[test]
    fn a_mismatch_is_an_argument_error_of_every_function() {
        let mismatch = aborted(AbortReason::Mismatch { versions: vec![] });
        let crossed = aborted(AbortReason::Contradiction { calls: vec![] });
        for call in RUN {
            assert_eq!(call.failure(&mismatch).code, Code::InvalidArgument);
            assert_eq!(call.failure(&crossed).code, Code::InvalidArgument);
        }
    }

    #[test]
    fn mistakes_of_the_caller_have_their_documented_codes() {
        let key = OpKey {
            kind: OpKind::Collective,
            tag: ids::Tag(1),
        };
        let cases = [
            (Call::Connect, UsageError::AlreadyConnected, 4),
            (Call::Update, UsageError::OperationsOpen(2), 10),
            (Call::Reduce, UsageError::InUse(key), 3),
            (Call::Reduce, UsageError::PartialOverlap, 3),
            (Call::Reduce, UsageError::NotConnected, 8),
            (Call::Reduce, UsageError::Closed, 8),
            (Call::Pending, UsageError::Closed, 4),
        ];
        for (call, usage, code) in cases {
            let failure = call.failure(&Error::Usage(usage.clone()));
            assert_eq!(failure.code as i32, code, "{call:?} {usage}");
        }
        let bug = Error::Internal("x".into());
        assert_eq!(Call::Reduce.failure(&bug).code, Code::InternalError);
    }

    #[test]
    fn numbers_and_names_are_those_of_the_header() {
        for (number, code) in Code::ALL.into_iter().enumerate() {
            assert_eq!(code as usize, number);
            assert!(code.name().to_bytes().starts_with(b"pccl"));
        }
    }
}
