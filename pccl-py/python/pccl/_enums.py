"""Enumerations. Their values are those of the C interface."""

from __future__ import annotations

import enum
import importlib
from typing import Any

import numpy as np


class Result(enum.IntEnum):
    """What became of a call. `PCCLError.result` is one of these, never SUCCESS."""

    SUCCESS = 0
    NOT_INITIALIZED = 1
    INTERNAL_ERROR = 2
    INVALID_ARGUMENT = 3
    """An argument is wrong, or the members' calls differ: a retry would fail the same way."""
    INVALID_USAGE = 4
    """A call at the wrong time, or by a peer that is no member any more."""
    TOO_FEW_PEERS = 5
    MASTER_CONNECTION_FAILED = 6
    RANK_CONNECTION_FAILED = 7
    RANK_CONNECTION_LOST = 8
    """The operation failed at every member alike; buffers are as they were. Try again."""
    NO_SHARED_STATE_AVAILABLE = 9
    PENDING_ASYNC_OPS = 10
    UPDATE_TOPOLOGY_FAILED = 11
    TOPOLOGY_OPTIMIZATION_FAILED = 12


class ReduceOp(enum.IntEnum):
    """How contributions are combined, element by element."""

    SUM = 0
    """Sum; integers wrap."""
    AVG = 1
    """Sum divided by the number of members; integers wrap first, then truncate toward zero."""
    PROD = 2
    """Product; integers wrap."""
    MAX = 3
    """Maximum; NaN if any contribution is NaN; -0 is less than +0."""
    MIN = 4
    """Minimum; NaN if any contribution is NaN; -0 is less than +0."""


class Attribute(enum.IntEnum):
    """Sizes that a member knows. They change only when a call returns."""

    GLOBAL_WORLD_SIZE = 1
    """Accepted members of the run."""
    LOCAL_WORLD_SIZE = 2
    """Accepted members of the own peer group."""
    NUM_DISTINCT_PEER_GROUPS = 3
    """Peer groups that have a member."""
    LARGEST_PEER_GROUP_WORLD_SIZE = 4
    """Members of the largest peer group."""


class SharedStateSyncStrategy(enum.IntEnum):
    """How a member takes part in a synchronisation of the shared state."""

    ENFORCE_POPULAR = 0
    """The content that most members hold wins; everybody else receives it."""
    RECEIVE_ONLY = 1
    """Never a candidate, never sends."""
    SEND_ONLY = 2
    """A candidate that never receives; fails if other content is elected."""


class DeviceType(enum.IntEnum):
    """Where a tensor lies. Only CPU can be used in this version."""

    CPU = 0
    CUDA = 1

    @classmethod
    def from_torch_device_type(cls, device_type: str) -> DeviceType | None:
        """The device that PyTorch calls `cpu` or `cuda`; none for any other."""
        return {"cpu": cls.CPU, "cuda": cls.CUDA}.get(device_type)


class DistributionHint(enum.IntEnum):
    """What the values are like. Accepted for compatibility; nothing depends on it."""

    NONE = 0
    NORMAL = 1
    UNIFORM = 2


class Algorithm(enum.IntEnum):
    """By which pattern an all-reduce moves its data. Not of PCCL 1.0."""

    AUTOMATIC = 0
    """As the environment variable `PCCL_ALGORITHM` says (ring, star or direct), or else as suits
    the size of the tensor and the links of the group."""
    RING = 1
    """Around the ring of the members."""
    STAR = 2
    """Through one member: two hops."""
    DIRECT = 3
    """Every pair exchanges: two hops, and at most two quantisations."""


class QuantizationAlgorithm(enum.IntEnum):
    """How values are made smaller on the wire."""

    NONE = 0
    MIN_MAX = 1
    ZERO_POINT_SCALE = 2


class DataType(enum.IntEnum):
    """Element type of a tensor."""

    UINT8 = 0
    INT8 = 1
    INT16 = 2
    UINT16 = 3
    UINT32 = 4
    INT32 = 5
    UINT64 = 6
    INT64 = 7
    FLOAT16 = 8
    BFLOAT16 = 9
    """The upper half of a float32. As a numpy dtype it comes from the package `ml_dtypes`."""
    FLOAT = 10
    DOUBLE = 11

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return _ITEMSIZE[self]

    def to_numpy_dtype(self) -> np.dtype[Any]:
        """The numpy dtype of this type.

        Raises:
            ImportError: for BFLOAT16, if the package `ml_dtypes` is not installed.
        """
        if self is DataType.BFLOAT16:
            import ml_dtypes

            bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
            return bfloat16
        return np.dtype(_NUMPY_NAME[self])

    @classmethod
    def from_numpy_dtype(cls, dtype: np.dtype[Any] | type[Any] | str) -> DataType:
        """The type of a numpy dtype.

        Raises:
            ValueError: if the dtype has no counterpart, or is not in this machine's byte order.
        """
        dtype = np.dtype(dtype)
        known = _FROM_NAME.get(dtype.name)
        if known is None:
            raise ValueError(
                f"dtype {dtype} cannot be reduced; use one of {', '.join(sorted(_FROM_NAME))}"
            )
        if not dtype.isnative:
            raise ValueError(f"dtype {dtype.str} is not in this machine's byte order")
        return known

    def to_torch_dtype(self) -> Any:
        """The PyTorch dtype of this type.

        Raises:
            ImportError: if PyTorch is not installed.
            AttributeError: if it is too old to have the type.
        """
        # By name, so that type checkers need not find it.
        return getattr(importlib.import_module("torch"), _NUMPY_NAME[self])

    @classmethod
    def from_torch_dtype(cls, dtype: Any) -> DataType:
        """The type of a PyTorch dtype. Does not import PyTorch.

        Raises:
            ValueError: if the dtype has no counterpart.
        """
        known = _FROM_NAME.get(str(dtype).removeprefix("torch."))
        if known is None:
            raise ValueError(
                f"dtype {dtype} cannot be reduced; use one of {', '.join(sorted(_FROM_NAME))}"
            )
        return known


_NUMPY_NAME = {
    DataType.UINT8: "uint8",
    DataType.INT8: "int8",
    DataType.INT16: "int16",
    DataType.UINT16: "uint16",
    DataType.UINT32: "uint32",
    DataType.INT32: "int32",
    DataType.UINT64: "uint64",
    DataType.INT64: "int64",
    DataType.FLOAT16: "float16",
    DataType.BFLOAT16: "bfloat16",
    DataType.FLOAT: "float32",
    DataType.DOUBLE: "float64",
}
_FROM_NAME = {name: data_type for data_type, name in _NUMPY_NAME.items()}
_ITEMSIZE = {
    DataType.UINT8: 1,
    DataType.INT8: 1,
    DataType.INT16: 2,
    DataType.UINT16: 2,
    DataType.UINT32: 4,
    DataType.INT32: 4,
    DataType.UINT64: 8,
    DataType.INT64: 8,
    DataType.FLOAT16: 2,
    DataType.BFLOAT16: 2,
    DataType.FLOAT: 4,
    DataType.DOUBLE: 8,
}
