"""Descriptors and results: plain data that goes into calls and comes out of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ._enums import (
    DataType,
    DeviceType,
    DistributionHint,
    QuantizationAlgorithm,
    ReduceOp,
)
from ._errors import ArgumentError, UnsupportedError

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class ReduceOperandDescriptor:
    """What the elements are.

    Attributes:
        datatype: element type of send and receive buffer.
        distribution_hint: accepted for compatibility; nothing depends on it.
    """

    datatype: DataType
    distribution_hint: DistributionHint = DistributionHint.NONE


@dataclass(frozen=True)
class QuantizationOptions:
    """How values are made smaller on the wire. Only `QuantizationAlgorithm.NONE` can be used.

    The defaults are those of PCCL 1.0, so options made without arguments ask for quantisation,
    which a call then refuses.
    """

    quantized_datatype: DataType = DataType.UINT8
    algorithm: QuantizationAlgorithm = QuantizationAlgorithm.MIN_MAX


@dataclass(frozen=True)
class ReduceDescriptor:
    """What one all-reduce does; must be equal at all members.

    Attributes:
        count: number of elements; zero is allowed.
        op: operator.
        tag: names the operation; operations with different tags run at the same time.
        operand_descriptor: element type.
        quantization_options: only with `QuantizationAlgorithm.NONE`.
    """

    count: int
    op: ReduceOp
    tag: int
    operand_descriptor: ReduceOperandDescriptor
    quantization_options: QuantizationOptions = field(
        default_factory=lambda: QuantizationOptions(algorithm=QuantizationAlgorithm.NONE)
    )


@dataclass(frozen=True, eq=False)
class ReduceOpDescriptor:
    """One all-reduce with its buffers. Holds references to the arrays.

    Attributes:
        send: the own contribution; never modified, unless it is `recv` too.
        recv: where the result goes. May be the same array as `send`.
        reduce_descriptor: what to do.
    """

    send: Array
    recv: Array
    reduce_descriptor: ReduceDescriptor

    @staticmethod
    def from_numpy(
        send: Array, recv: Array, reduce_descriptor: ReduceDescriptor
    ) -> ReduceOpDescriptor:
        """Checks that the arrays fit the descriptor.

        Args:
            send: C-contiguous, of the descriptor's type and count, in any shape.
            recv: as `send`, and writable.
            reduce_descriptor: what to do.

        Raises:
            ArgumentError: if an array does not fit.
        """
        want = reduce_descriptor.operand_descriptor.datatype
        for name, array in (("send", send), ("recv", recv)):
            have = data_type_of("ReduceOpDescriptor.from_numpy", name, array)
            if have is not want or array.size != reduce_descriptor.count:
                raise ArgumentError(
                    "ReduceOpDescriptor.from_numpy",
                    f"{name} has {array.size} x {have.name}; the descriptor says "
                    f"{reduce_descriptor.count} x {want.name}",
                )
        return ReduceOpDescriptor(send, recv, reduce_descriptor)


@dataclass(frozen=True)
class ReduceInfo:
    """What an all-reduce did.

    Attributes:
        local_world_size: members of the peer group that took part.
        tx_bytes: bytes of payload sent by this member.
        rx_bytes: bytes of payload received by this member.
    """

    local_world_size: int
    tx_bytes: int
    rx_bytes: int


@dataclass(frozen=True, eq=False)
class TensorInfo:
    """One named tensor of the shared state. Holds a reference to the array.

    Attributes:
        name: compared by name, not by position; unique within a state.
        array: C-contiguous and writable, in any shape.
        dtype: element type.
        numel: number of elements.
        device_type: always CPU.
        allow_content_inequality: whether members may hold different content without being out of
            date; such a tensor is not compared. A member that receives gets it all the same.
    """

    name: str
    array: Array
    dtype: DataType
    numel: int
    device_type: DeviceType = DeviceType.CPU
    allow_content_inequality: bool = False

    @classmethod
    def from_numpy(
        cls, array: Array, name: str, *, allow_content_inequality: bool = False
    ) -> TensorInfo:
        """Describes `array` as the tensor `name`.

        Raises:
            ArgumentError: if the type cannot be shared.
        """
        dtype = data_type_of("TensorInfo.from_numpy", name, array)
        return cls(
            name,
            array,
            dtype,
            int(array.size),
            allow_content_inequality=allow_content_inequality,
        )


class SharedState:
    """Named tensors that all members of a peer group hold alike, and their revision.

    Args:
        tensors: at least one; names must be unique.

    Raises:
        ArgumentError: if there is none, or a name comes twice.
    """

    def __init__(self, tensors: list[TensorInfo]) -> None:
        names = [tensor.name for tensor in tensors]
        if not names:
            raise ArgumentError("SharedState", "a shared state needs at least one tensor")
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ArgumentError("SharedState", f"these names come more than once: {twice}")
        self.tensors = tuple(tensors)
        self._revision = 0

    @property
    def revision(self) -> int:
        """Version of the content. Grows by one from one synchronisation to the next; the members'
        next revision is decided by them together, and a member that is behind is given it."""
        return self._revision

    @revision.setter
    def revision(self, revision: int) -> None:
        if not 0 <= revision < 1 << 64:
            raise ArgumentError("SharedState.revision", f"{revision} does not fit 64 bits")
        self._revision = int(revision)

    def push_revision(self) -> None:
        """Adds one to the revision: the content was changed."""
        self.revision += 1


@dataclass(frozen=True)
class SharedStateSyncInfo:
    """What a synchronisation moved.

    Attributes:
        tx_bytes: bytes of content that this member served to others.
        rx_bytes: bytes of content that this member fetched.
    """

    tx_bytes: int
    rx_bytes: int


def data_type_of(function: str, name: str, array: Array) -> DataType:
    """Element type of `array`, or an `ArgumentError` that names it."""
    if not isinstance(array, np.ndarray):
        raise ArgumentError(function, f"{name} is a {type(array).__name__}, not a numpy array")
    try:
        return DataType.from_numpy_dtype(array.dtype)
    except ValueError as error:
        raise ArgumentError(function, f"{name}: {error}") from None


def check_supported(function: str, quantization: QuantizationOptions | None) -> None:
    """Refuses what this version cannot do."""
    if quantization is not None and quantization.algorithm != QuantizationAlgorithm.NONE:
        raise UnsupportedError(
            function,
            f"quantisation ({QuantizationAlgorithm(quantization.algorithm).name}) is not there in "
            "this version; pass QuantizationAlgorithm.NONE",
        )
