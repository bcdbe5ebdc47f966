"""A peer's membership in a run, and what it does there."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from . import _native
from ._enums import (
    Algorithm,
    Attribute,
    DataType,
    QuantizationAlgorithm,
    ReduceOp,
    Result,
    SharedStateSyncStrategy,
)
from ._errors import ArgumentError, PCCLError
from ._events import Event
from ._handle import AsyncReduceHandle, wait_for
from ._lifetime import leave_at_exit
from ._tensors import Tensor, view_of
from ._types import (
    Divergence,
    QuantizationOptions,
    ReduceInfo,
    ReduceOpDescriptor,
    ReduceOperandDescriptor,
    SharedState,
    SharedStateSyncInfo,
    SyncProgress,
)

RETRY_PAUSE_S = 1.0
"""Pause between two tries to reach the master: long enough for one to start."""
FORGET_FROM = 64
"""Handles that nobody waits for are forgotten, once done, when there are so many of them."""


class Communicator:
    """A peer of a run. Joins with `connect`, leaves with `leave` or when it is destroyed.

    All members make the same unanimous calls in the same order: `update_topology` and
    `are_peers_pending` over the run, `sync_shared_state` over the peer group. A newcomer whose
    `connect` has just returned was admitted by the others' `update_topology` and must call neither
    this nor `are_peers_pending` in its first round: the others are past them.

    Destroying it leaves the run, and so does the end of the interpreter. It belongs to the process
    that made it: in a forked child every call fails, and nothing happens to the parent's.

    Tensors are numpy arrays, PyTorch tensors, or anything with DLPack or the buffer protocol: on
    the CPU, C-contiguous, of a type in `DataType`. They are never copied.

    Waits release the interpreter's lock and use no CPU. The first Ctrl-C in a wait asks for the
    call to fail at all members and returns with the verdict: `KeyboardInterrupt` is raised, its
    `__cause__` is the `PCCLError` if the call failed, and there is none if it was committed all
    the same. A second Ctrl-C leaves the run at once, without a verdict.

    Args:
        address: `host:port` of the master: a name, an IPv4 address, or an IPv6 address in
            brackets, as in `[::1]:48148`. Or a join ticket (`pccl1...`), which the master prints
            if it gives any: then all that is said is encrypted, and only members talk.
        peer_group: peers of one group reduce and synchronise with one another.
        p2p_connection_pool_size: connections per pair of members; 0 chooses automatically.
        name: what operators shall call this peer in logs and errors.
        listen: `host:port` to listen on for other members, such as `0.0.0.0:50000`; by default any
            port of the address that reaches the master.
        local_rank: added to the port of `listen`, so that processes of one machine can be given
            the same base. Nothing is read from the environment of a launcher: under torchrun pass
            `int(os.environ["LOCAL_RANK"])`.
        segment_bytes: payload of one data frame at most, a multiple of 8; each peer's own matter.

    Raises:
        ArgumentError: if an argument cannot be used. Nothing is sent before `connect`.
    """

    def __init__(
        self,
        address: str,
        peer_group: int = 0,
        p2p_connection_pool_size: int = 0,
        *,
        name: str = "",
        listen: str | None = None,
        local_rank: int = 0,
        segment_bytes: int | None = None,
    ) -> None:
        _check_range("peer_group", peer_group, 32)
        _check_range("p2p_connection_pool_size", p2p_connection_pool_size, 16)
        if local_rank:
            listen = _next_port(listen, local_rank)
        self._native = _native.Communicator(
            address, peer_group, p2p_connection_pool_size, name, segment_bytes, listen
        )
        # By tag. The operation may write to the tensors until its verdict: they live as long.
        self._open: dict[int, AsyncReduceHandle] = {}
        leave_at_exit(self)

    def connect(self, n_attempts: int = 5, *, timeout: float | None = None) -> None:
        """Joins the run: registers, and returns when the members have admitted this peer (at once,
        if there are none yet).

        Args:
            n_attempts: tries to reach the master, one second apart. Waiting for the members'
                `update_topology` counts as none and has no limit.
            timeout: with it, tries to reach the master for that many seconds instead, and then
                gives up, also when the members have not admitted this peer yet.

        Raises:
            PCCLError: MASTER_CONNECTION_FAILED if the master cannot be reached or refuses,
                INVALID_USAGE if already connected.
        """
        if timeout is not None:
            return self._native.connect(timeout)
        for attempt in range(1, n_attempts + 1):
            try:
                return self._native.connect(None)
            except PCCLError as error:
                if error.result != Result.MASTER_CONNECTION_FAILED or attempt == n_attempts:
                    raise
            time.sleep(RETRY_PAUSE_S)
        raise ArgumentError("connect", f"n_attempts is {n_attempts}; at least one is needed")

    def get_attribute(self, attribute: Attribute) -> int:
        """A size of the run, as of the last call that returned; 1 while not connected."""
        return self._native.attributes()[Attribute(attribute) - 1]

    def update_topology(self, *, timeout: float | None = None) -> None:
        """Admits the newcomers that wait. Unanimous over the run; returns when all members have
        called it. On an evicted peer: joins again.

        Args:
            timeout: seconds after which the call asks to fail, for all members; none by default.

        Raises:
            PCCLError: UPDATE_TOPOLOGY_FAILED if it failed at all members, PENDING_ASYNC_OPS if
                operations are open here, INVALID_ARGUMENT if members wait in other calls.
        """
        self._native.update_topology(timeout)

    def are_peers_pending(self, *, timeout: float | None = None) -> bool:
        """Whether newcomers wait for admission. Unanimous over the run; may be called while
        operations are open.

        Args:
            timeout: as for `update_topology`.

        Raises:
            PCCLError: as for `update_topology`, but INVALID_USAGE if it failed.
        """
        return self._native.are_peers_pending(timeout)

    def optimize_topology(self, *, timeout: float | None = None) -> None:
        """Makes the members agree on the order of the ring. Unanimous over the run. Links are not
        measured in this version: they agree on the order that they have.

        Args:
            timeout: as for `update_topology`.

        Raises:
            PCCLError: TOPOLOGY_OPTIMIZATION_FAILED if it failed at all members, INVALID_USAGE if
                the run has no other member, PENDING_ASYNC_OPS if operations are open here.
        """
        if self.get_attribute(Attribute.GLOBAL_WORLD_SIZE) < 2:
            raise PCCLError(
                Result.INVALID_USAGE,
                "optimize_topology",
                "the run has no other member: there is no order to choose",
            )
        self._native.optimize_topology(timeout)

    def all_reduce(
        self,
        send: Tensor,
        recv: Tensor,
        *,
        op: ReduceOp,
        tag: int = 0,
        operand_descriptor: ReduceOperandDescriptor | None = None,
        quantization_options: QuantizationOptions | None = None,
        algorithm: Algorithm = Algorithm.AUTOMATIC,
        timeout: float | None = None,
    ) -> ReduceInfo:
        """Combines `send` of all members of the peer group into `recv`, with the same bits at each.

        Args:
            send: the contribution, C-contiguous, in any shape. Not copied, not modified.
            recv: the result; writable, of the type and element count of `send`. May be `send`.
            op: operator.
            tag: names the operation; one with a given tag is open at a time.
            operand_descriptor: element type; must be that of the tensors.
            quantization_options: how data travels; as it is if absent.
            algorithm: by which pattern it moves; the library's choice by default. The same at all
                members; fails with INVALID_ARGUMENT where the links do not allow it.
            timeout: seconds after which the operation asks to fail, at all members; the verdict
                may still be success. None by default.

        Returns:
            How many took part, and what was moved.

        Raises:
            PCCLError: RANK_CONNECTION_LOST if it failed at all members: `recv` is undefined, or,
                if it is `send`, as it was; TOO_FEW_PEERS if there is no other member;
                INVALID_ARGUMENT if the members' calls differ.
            ArgumentError: if a tensor cannot be used: it is read-only, not contiguous, on a GPU,
                of another type or length than the other one, or overlaps it in part. Or if what
                is asked for cannot be quantised.
        """
        operation = self._start(
            "all_reduce",
            send,
            recv,
            op=op,
            tag=tag,
            operand=operand_descriptor,
            quantization=quantization_options,
            algorithm=algorithm,
            timeout=timeout,
        )
        return ReduceInfo(*wait_for(operation))

    def all_reduce_async(
        self,
        send: Tensor,
        recv: Tensor,
        *,
        op: ReduceOp,
        tag: int = 0,
        operand_descriptor: ReduceOperandDescriptor | None = None,
        quantization_options: QuantizationOptions | None = None,
        algorithm: Algorithm = Algorithm.AUTOMATIC,
        timeout: float | None = None,
    ) -> AsyncReduceHandle:
        """Starts an all-reduce and returns at once. Arguments as for `all_reduce`; what becomes of
        it is the handle's to say. The tensors must not be touched until then.

        Raises:
            PCCLError: TOO_FEW_PEERS if there is no other member, INVALID_USAGE if not connected,
                INVALID_ARGUMENT if an operation with this tag is open.
            ArgumentError: as for `all_reduce`.
        """
        function = "all_reduce_async"
        earlier = self._open.get(tag)
        if earlier is not None and not earlier.is_done():
            raise PCCLError(
                Result.INVALID_ARGUMENT, function, f"an operation with tag {tag} is still open"
            )
        operation = self._start(
            function,
            send,
            recv,
            op=op,
            tag=tag,
            operand=operand_descriptor,
            quantization=quantization_options,
            algorithm=algorithm,
            timeout=timeout,
        )
        handle = self._keep(operation, tag)
        if self.get_attribute(Attribute.LOCAL_WORLD_SIZE) < 2:
            # It cannot have begun: nothing is waited for.
            handle.wait()
            if handle.error is not None:
                raise handle.error
        return handle

    def all_reduce_multiple_with_retry(
        self,
        descriptors: list[ReduceOpDescriptor],
        *,
        max_in_flight: int = 4,
        timeout: float | None = None,
    ) -> ReduceInfo:
        """Runs several all-reduces, and those that fail again, until all are committed. It returns
        if and only if all are.

        Args:
            descriptors: what to do, the same at all members in the same order; tags must differ,
                and memory that one of them writes may not be another's.
            max_in_flight: operations open at a time at most.
            timeout: seconds after which a failure is not repeated any more. None by default.

        Returns:
            Sums over all of them, each counted once, and the world size of the last. When members
            are lost in between, different operations may have had different members.

        Raises:
            PCCLError: TOO_FEW_PEERS if no other member is left, INVALID_ARGUMENT if the members'
                calls differ, or whatever else no retry can mend. Its `committed` says which of
                the operations were done, with results in their buffers; all others are as they
                were. No operation is open then.
            ArgumentError: if a tensor cannot be used, or there is no descriptor.
        """
        function = "all_reduce_multiple_with_retry"
        if not isinstance(max_in_flight, int) or max_in_flight < 1:
            raise ArgumentError(
                function, f"max_in_flight is {max_in_flight!r}; at least 1 is needed"
            )
        items = []
        for descriptor in descriptors:
            what = descriptor.reduce_descriptor
            _check_range("tag", what.tag, 64)
            send, recv = descriptor.views(function)
            numbers = _numbers(send.dtype, what.op, what.quantization_options, what.algorithm)
            items.append((send.lent(), recv.lent(), numbers, what.tag))
        return ReduceInfo(*self._native.all_reduce_multiple(items, max_in_flight, timeout))

    def sync_shared_state(
        self,
        shared_state: SharedState,
        strategy: SharedStateSyncStrategy = SharedStateSyncStrategy.ENFORCE_POPULAR,
        *,
        timeout: float | None = None,
    ) -> SharedStateSyncInfo:
        """Makes the tensors and the revision of all members of the peer group the same. All must
        call it.

        The content to hold is elected (see `SharedStateSyncStrategy`); members whose content
        differs fetch it, chunk by chunk, from all members that have it. Afterwards the revision of
        `shared_state` is the elected one.

        Args:
            shared_state: the tensors, by name; must not be touched until the call returns.
            strategy: how this member takes part.
            timeout: as for `update_topology`.

        Raises:
            PCCLError: INVALID_USAGE if it failed, or if this member's content broke a rule, with
                the tensor, what was expected, and who has it; PENDING_ASYNC_OPS if operations are
                open here.
            ArgumentError: if a tensor cannot be used.
        """
        function = "sync_shared_state"
        tensors = [
            (info.name, info.view(function).lent(), int(info.dtype), info.allow_content_inequality)
            for info in shared_state.tensors
        ]
        tx_bytes, rx_bytes, revision, sources, divergences = self._native.sync_shared_state(
            tensors, shared_state.revision, int(SharedStateSyncStrategy(strategy)), timeout
        )
        shared_state.revision = revision
        return SharedStateSyncInfo(
            tx_bytes,
            rx_bytes,
            dict(sources),
            tuple(
                Divergence(tensor, begin, end, tuple(holders), since)
                for tensor, begin, end, holders, since in divergences
            ),
        )

    def sync_progress(self) -> SyncProgress | None:
        """How far the synchronisation that another thread is in has come with what it fetches;
        none if there is none, or it is not known yet what to fetch."""
        progress = self._native.sync_progress()
        return None if progress is None else SyncProgress(*progress)

    @property
    def member_id(self) -> int | None:
        """The number of this peer in the run, never given twice; none while it is no member."""
        return self._native.member_id()

    def members(self) -> list[int]:
        """Numbers of the members of the own peer group, in the order of the ring, as last heard of;
        empty while not connected. The place in this list is the rank."""
        return self._native.members()

    def events(self) -> Iterator[Event]:
        """What happens from now on, as it happens: an endless iterator that blocks, with the
        interpreter's lock released, and ends when this peer has left. To be read by one thread."""
        stream = self._native.events()
        return _read(stream)

    def leave(self) -> None:
        """Leaves the run in good order. Open operations fail for all members, naming this peer.
        Bounded in time; may be called again. Destroying the communicator does the same."""
        self._native.leave()

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.leave()

    def _keep(self, operation: _native.Operation, tag: int) -> AsyncReduceHandle:
        if len(self._open) >= FORGET_FROM:
            for other, open_handle in list(self._open.items()):
                if open_handle.is_done():
                    self._open.pop(other, None)
        handle = AsyncReduceHandle(operation, tag, self._forget)
        self._open[tag] = handle
        return handle

    def _forget(self, handle: AsyncReduceHandle, tag: int) -> None:
        if self._open.get(tag) is handle:
            self._open.pop(tag, None)

    def _start(
        self,
        function: str,
        send: Tensor,
        recv: Tensor,
        *,
        op: ReduceOp,
        tag: int,
        operand: ReduceOperandDescriptor | None,
        quantization: QuantizationOptions | None,
        algorithm: Algorithm,
        timeout: float | None,
    ) -> _native.Operation:
        sent = view_of(function, "send", send, writable=False)
        received = view_of(function, "recv", recv, writable=True)
        if sent.dtype is not received.dtype:
            raise ArgumentError(
                function, f"send is {sent.dtype.name}, but recv is {received.dtype.name}"
            )
        if operand is not None and operand.datatype != sent.dtype:
            want = DataType(operand.datatype).name
            raise ArgumentError(
                function, f"the tensors are {sent.dtype.name}, the descriptor {want}"
            )
        _check_range("tag", tag, 64)
        what = _numbers(sent.dtype, op, quantization, algorithm)
        return self._native.all_reduce(function, sent.lent(), received.lent(), what, tag, timeout)


def _numbers(
    dtype: DataType,
    op: ReduceOp,
    quantization: QuantizationOptions | None,
    algorithm: Algorithm,
) -> tuple[int, int, int, int, int]:
    how, quantized = QuantizationAlgorithm.NONE, dtype
    if quantization is not None:
        how = QuantizationAlgorithm(quantization.algorithm)
        quantized = DataType(quantization.quantized_datatype)
    way = Algorithm(algorithm)
    return int(dtype), int(ReduceOp(op)), int(how), int(quantized), int(way)


def _read(stream: _native.Events) -> Iterator[Event]:
    while (raw := stream.next(None)) is not None:
        kind, text, fields = raw
        yield Event(kind, text, fields)


def _check_range(name: str, value: Any, bits: int) -> None:
    if not isinstance(value, int) or not 0 <= value < 1 << bits:
        raise ArgumentError("Communicator", f"{name} is {value!r}; it must fit {bits} bits")


def _next_port(listen: str | None, local_rank: int) -> str:
    """`listen` with the rank added to its port."""
    host, _, base = (listen or "").rpartition(":")
    if not (host and base.isascii() and base.isdigit() and base != "0"):
        raise ArgumentError(
            "Communicator", f"local_rank needs listen with a port to count from, not {listen!r}"
        )
    port = int(base) + int(local_rank)
    if local_rank < 0 or port >= 1 << 16:
        raise ArgumentError("Communicator", f"port {base} + local rank {local_rank} is no port")
    return f"{host}:{port}"
