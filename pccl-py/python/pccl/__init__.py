"""Fault-tolerant collective communication over the public internet.

Training processes (*peers*) join and leave a run at any time; a small *master* keeps them in
agreement; the peers average tensors among themselves, and every one ends with the same bits.

    import numpy as np
    import pccl

    peer = pccl.Communicator("127.0.0.1:48148")
    peer.connect()
    gradient = np.ones(1000, np.float32)
    peer.all_reduce(gradient, gradient, op=pccl.ReduceOp.AVG)

Warnings go to standard error: whom a call waits for, who was lost and how. The environment variable
`PCCL_LOG_LEVEL` (TRACE, DEBUG, INFO, WARN, ERR, NONE) says how much, when the module is imported.

The names and signatures are those of PCCL 1.0; what is added is marked in the documentation of
each class.
"""

from . import _cuda as cuda
from . import _native
from ._communicator import Communicator
from ._enums import (
    Algorithm,
    Attribute,
    DataType,
    DeviceType,
    DistributionHint,
    QuantizationAlgorithm,
    ReduceOp,
    Result,
    SharedStateSyncStrategy,
)
from ._errors import ArgumentError, PCCLError
from ._events import Event
from ._handle import AsyncReduceHandle
from ._master import MasterNode
from ._rival import warn_of_pypccl
from ._types import (
    Divergence,
    QuantizationOptions,
    ReduceDescriptor,
    ReduceInfo,
    ReduceOpDescriptor,
    ReduceOperandDescriptor,
    SharedState,
    SharedStateSyncInfo,
    SyncProgress,
    TensorInfo,
)

__version__: str = _native.VERSION
"""Version of the package, as in its distribution's metadata."""

warn_of_pypccl()

__all__ = [
    "Algorithm",
    "ArgumentError",
    "AsyncReduceHandle",
    "Attribute",
    "Communicator",
    "DataType",
    "DeviceType",
    "DistributionHint",
    "Divergence",
    "Event",
    "MasterNode",
    "PCCLError",
    "QuantizationAlgorithm",
    "QuantizationOptions",
    "ReduceDescriptor",
    "ReduceInfo",
    "ReduceOp",
    "ReduceOpDescriptor",
    "ReduceOperandDescriptor",
    "Result",
    "SharedState",
    "SharedStateSyncInfo",
    "SharedStateSyncStrategy",
    "SyncProgress",
    "TensorInfo",
    "__version__",
    "cuda",
]
