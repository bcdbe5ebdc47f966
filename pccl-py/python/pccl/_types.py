"""Descriptors and results: plain data that goes into calls and comes out of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from ._enums import (
    Algorithm,
    DataType,
    DeviceType,
    DistributionHint,
    QuantizationAlgorithm,
    ReduceOp,
)
from ._errors import ArgumentError
from ._tensors import Tensor, View, pointer_view, view_of


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
    """How floats are made smaller on their way. Equal at all members, as is the result, to the bit.

    The defaults are those of PCCL 1.0, so options made without arguments ask for quantisation.

    Attributes:
        quantized_datatype: UINT8, INT8, UINT16 or INT16. Integer types of 32 or 64 bits, and types
            as wide as the data, send the data as it is.
        algorithm: MIN_MAX: in equal steps between the least and the greatest element of a block.
            ZERO_POINT_SCALE: in multiples of a scale, so that zeros stay zeros; for SUM and AVG
            only. NONE: as it is.
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
        quantization_options: how data travels; as it is by default.
        algorithm: by which pattern it moves; the library's choice by default. Not of PCCL 1.0.
    """

    count: int
    op: ReduceOp
    tag: int
    operand_descriptor: ReduceOperandDescriptor
    quantization_options: QuantizationOptions = field(
        default_factory=lambda: QuantizationOptions(algorithm=QuantizationAlgorithm.NONE)
    )
    algorithm: Algorithm = Algorithm.AUTOMATIC


class ReduceOpDescriptor:
    """One all-reduce with its buffers. Holds references to the tensors that it is made from.

    Args:
        sendbuf_ptr: address of the own contribution, which is never modified, unless it is
            `recvbuf_ptr` too. The caller keeps the memory alive, with as many elements as
            `reduce_descriptor` says; better, make descriptors from tensors.
        recvbuf_ptr: address of where the result goes. May be `sendbuf_ptr`.
        reduce_descriptor: what to do.
    """

    def __init__(
        self, sendbuf_ptr: int, recvbuf_ptr: int, reduce_descriptor: ReduceDescriptor
    ) -> None:
        self.sendbuf_ptr = sendbuf_ptr
        self.recvbuf_ptr = recvbuf_ptr
        self.reduce_descriptor = reduce_descriptor
        self._tensors: tuple[Tensor, Tensor] | None = None

    @staticmethod
    def from_tensor(
        send: Tensor, recv: Tensor, reduce_descriptor: ReduceDescriptor
    ) -> ReduceOpDescriptor:
        """From tensors of any sort. Not of PCCL 1.0.

        Args:
            send: C-contiguous, of the descriptor's type and count, in any shape.
            recv: as `send`, and writable. May be `send`.
            reduce_descriptor: what to do.

        Raises:
            ArgumentError: if a tensor does not fit the descriptor, or cannot be used.
        """
        descriptor = ReduceOpDescriptor(0, 0, reduce_descriptor)
        descriptor._tensors = (send, recv)
        views = descriptor.views("ReduceOpDescriptor")
        descriptor.sendbuf_ptr, descriptor.recvbuf_ptr = (view.address for view in views)
        return descriptor

    @staticmethod
    def from_numpy(
        send: Tensor, recv: Tensor, reduce_descriptor: ReduceDescriptor
    ) -> ReduceOpDescriptor:
        """As `from_tensor`."""
        return ReduceOpDescriptor.from_tensor(send, recv, reduce_descriptor)

    @staticmethod
    def from_torch(
        send: Tensor, recv: Tensor, reduce_descriptor: ReduceDescriptor
    ) -> ReduceOpDescriptor:
        """As `from_tensor`."""
        return ReduceOpDescriptor.from_tensor(send, recv, reduce_descriptor)

    def views(self, function: str) -> tuple[View, View]:
        """The memory of both as it is now, or an `ArgumentError` of `function`."""
        count = self.reduce_descriptor.count
        want = self.reduce_descriptor.operand_descriptor.datatype
        if self._tensors is None:
            return (
                pointer_view(self.sendbuf_ptr, count, want),
                pointer_view(self.recvbuf_ptr, count, want),
            )
        send = view_of(function, "send", self._tensors[0], writable=False)
        recv = view_of(function, "recv", self._tensors[1], writable=True)
        for name, view in (("send", send), ("recv", recv)):
            if view.dtype != want or view.numel != count:
                raise ArgumentError(
                    function,
                    f"{name} has {view.numel} x {view.dtype.name}; the descriptor says "
                    f"{count} x {want.name}",
                )
        return send, recv


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


class TensorInfo:
    """One named tensor of the shared state. Holds a reference to the tensor that it is made from.

    Args:
        name: compared by name, not by position; unique within a state.
        data_ptr: address of the first element. The caller keeps the memory alive; better, make it
            from a tensor.
        numel: number of elements.
        dtype: element type.
        device_type: must be CPU.
        allow_content_inequality: whether members may hold different content without being out of
            date; such a tensor is not compared. A member that receives gets it all the same.

    Raises:
        ArgumentError: if the address is null, or the device is not the CPU.
    """

    def __init__(
        self,
        name: str,
        data_ptr: int,
        *,
        numel: int,
        dtype: DataType,
        device_type: DeviceType,
        allow_content_inequality: bool,
    ) -> None:
        if data_ptr == 0 and numel != 0:
            raise ArgumentError("TensorInfo", f"{name} begins at address 0")
        if device_type != DeviceType.CPU:
            raise ArgumentError("TensorInfo", f"{name} is on {device_type!r}, not on the CPU")
        self.name = name
        self.data_ptr = data_ptr
        self.numel = numel
        self.dtype = DataType(dtype)
        self.device_type = DeviceType.CPU
        self.allow_content_inequality = allow_content_inequality
        self.tensor: Tensor | None = None

    @classmethod
    def from_tensor(
        cls, tensor: Tensor, name: str, *, allow_content_inequality: bool = False
    ) -> TensorInfo:
        """Describes `tensor`, of any sort and shape, as the tensor `name`. Not of PCCL 1.0.

        If a PyTorch tensor is given other memory later on (`p.data = ...`), that is what is
        synchronised.

        Raises:
            ArgumentError: if the tensor cannot be shared.
        """
        view = view_of("TensorInfo", name, tensor, writable=False)
        info = cls(
            name,
            view.address,
            numel=view.numel,
            dtype=view.dtype,
            device_type=DeviceType.CPU,
            allow_content_inequality=allow_content_inequality,
        )
        info.tensor = tensor
        return info

    @classmethod
    def from_numpy(
        cls, tensor: Tensor, name: str, *, allow_content_inequality: bool = False
    ) -> TensorInfo:
        """As `from_tensor`."""
        return cls.from_tensor(tensor, name, allow_content_inequality=allow_content_inequality)

    @classmethod
    def from_torch(
        cls, tensor: Tensor, name: str, *, allow_content_inequality: bool = False
    ) -> TensorInfo:
        """As `from_tensor`."""
        return cls.from_tensor(tensor, name, allow_content_inequality=allow_content_inequality)

    def view(self, function: str) -> View:
        """The memory as it is now, or an `ArgumentError` of `function`."""
        if self.tensor is None:
            return pointer_view(self.data_ptr, self.numel, self.dtype)
        view = view_of(function, self.name, self.tensor, writable=True)
        if (view.numel, view.dtype) != (self.numel, self.dtype):
            raise ArgumentError(
                function,
                f"{self.name} was {self.numel} x {self.dtype.name}, and is "
                f"{view.numel} x {view.dtype.name} now",
            )
        return view


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
        """Version of the content, which the program raises by one between two synchronisations
        that succeed (`push_revision`): content at the revision of the last one is not elected
        again. A member that is behind is given the elected revision."""
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
class Divergence:
    """A tensor whose content was not that of the others, at the same revision.

    Attributes:
        tensor: its name.
        begin: first byte that differed.
        end: the byte behind the last that differed.
        holders: members that had the elected content.
        since: revision at which all last had the same; none in the first synchronisation.
    """

    tensor: str
    begin: int
    end: int
    holders: tuple[int, ...]
    since: int | None


@dataclass(frozen=True)
class SharedStateSyncInfo:
    """What a synchronisation moved.

    Attributes:
        tx_bytes: bytes of content that this member served to others.
        rx_bytes: bytes of content that this member fetched.
        sources: the bytes fetched, by the number of the member that gave them.
        divergences: tensors of this member that differed from the elected ones although it was at
            the elected revision: memory, a computation or a program has gone wrong.
    """

    tx_bytes: int
    rx_bytes: int
    sources: dict[int, int] = field(default_factory=dict)
    divergences: tuple[Divergence, ...] = ()


@dataclass(frozen=True)
class SyncProgress:
    """How far a synchronisation is with what it fetches.

    Attributes:
        total_bytes: bytes to fetch; becomes less when tensors turn out to differ in part only.
        fetched_bytes: bytes that are in their place.
        elapsed: seconds since it is known what to fetch.
    """

    total_bytes: int
    fetched_bytes: int
    elapsed: float

    @property
    def rate(self) -> float:
        """Bytes per second, on average."""
        return self.fetched_bytes / max(self.elapsed, 1e-9)

    @property
    def time_left(self) -> float | None:
        """Seconds that the rest takes at that rate; none before anything has come."""
        if self.fetched_bytes == 0:
            return None
        return (self.total_bytes - self.fetched_bytes) / self.rate
