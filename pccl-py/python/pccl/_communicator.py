"""A peer's membership in a run, and what it does there."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from . import _native
from ._enums import (
    Attribute,
    DataType,
    ReduceOp,
    Result,
    SharedStateSyncStrategy,
)
from ._errors import ArgumentError, PCCLError
from ._events import Event
from ._handle import AsyncReduceHandle, wait_for
from ._retry import Batch
from ._types import (
    Array,
    QuantizationOptions,
    ReduceInfo,
    ReduceOpDescriptor,
    ReduceOperandDescriptor,
    SharedState,
    SharedStateSyncInfo,
    check_supported,
    data_type_of,
)

RETRY_PAUSE_S = 1.0
"""Pause between two tries to reach the master: long enough for one to start."""
FORGET_FROM = 64
"""Handles that nobody waits for are forgotten, once done, when there are so many of them."""


class Communicator:
    """A peer of a run. Joins with `connect`, leaves with `leave` or when it is destroyed.

    All members make the same unanimous calls in the same order: `update_topology` and
    `are_peers_pending` over the run, `sync_shared_state` over the peer group. A newcomer whose
    `connect` has just returned was admitted by the others' `update_topology` and must not call
    it again in its first round.

    Waits release the interpreter's lock and use no CPU. The first Ctrl-C in a wait asks for the
    call to fail at all members and returns with the verdict: `KeyboardInterrupt` is raised, its
    `__cause__` is the `PCCLError` if the call failed, and there is none if it was committed all
    the same. A second Ctrl-C leaves the run at once, without a verdict.

    Args:
        address: `host:port` of the master.
        peer_group: peers of one group reduce and synchronise with one another.
        p2p_connection_pool_size: connections per pair of members; 0 chooses automatically.
        name: what operators shall call this peer in logs and errors.
        listen: `ip:port` to listen on; by default any port of the address that reaches the
            master.
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
        segment_bytes: int | None = None,
    ) -> None:
        _check_range("peer_group", peer_group, 32)
        _check_range("p2p_connection_pool_size", p2p_connection_pool_size, 16)
        self._native = _native.Communicator(
            address, peer_group, p2p_connection_pool_size, name, segment_bytes, listen
        )
        # The operation may write to the arrays until its verdict: they live as long.
        self._open: set[AsyncReduceHandle] = set()

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

    def all_reduce(
        self,
        send: Array,
        recv: Array,
        *,
        op: ReduceOp,
        tag: int = 0,
        operand_descriptor: ReduceOperandDescriptor | None = None,
        quantization_options: QuantizationOptions | None = None,
        timeout: float | None = None,
    ) -> ReduceInfo:
        """Combines `send` of all members of the peer group into `recv`, with the same bits at each.

        Args:
            send: the contribution, C-contiguous, in any shape. Not copied, not modified.
            recv: the result; writable, of the type and element count of `send`. May be `send`.
            op: operator.
            tag: names the operation; one with a given tag is open at a time.
            operand_descriptor: element type, if not that of the arrays.
            quantization_options: must be absent or ask for none.
            timeout: seconds after which the operation asks to fail, at all members; the verdict
                may still be success. None by default.

        Returns:
            How many took part, and what was moved.

        Raises:
            PCCLError: RANK_CONNECTION_LOST if it failed at all members: `recv` is undefined, or,
                if it is `send`, as it was; TOO_FEW_PEERS if there is no other member;
                INVALID_ARGUMENT if the members' calls differ.
            ArgumentError: if an array cannot be used.
        """
        operation = self._start(
            "all_reduce",
            send,
            recv,
            op=op,
            tag=tag,
            operand=operand_descriptor,
            quantization=quantization_options,
            timeout=timeout,
        )
        return ReduceInfo(*wait_for(operation))

    def all_reduce_async(
        self,
        send: Array,
        recv: Array,
        *,
        op: ReduceOp,
        tag: int = 0,
        operand_descriptor: ReduceOperandDescriptor | None = None,
        quantization_options: QuantizationOptions | None = None,
        timeout: float | None = None,
    ) -> AsyncReduceHandle:
        """Starts an all-reduce and returns at once. Arguments and errors as for `all_reduce`; what
        becomes of it is the handle's to say. The arrays must not be touched until then."""
        operation = self._start(
            "all_reduce_async",
            send,
            recv,
            op=op,
            tag=tag,
            operand=operand_descriptor,
            quantization=quantization_options,
            timeout=timeout,
        )
        return self._keep(operation)

    def all_reduce_multiple_with_retry(
        self, descriptors: list[ReduceOpDescriptor], *, max_in_flight: int = 4
    ) -> ReduceInfo:
        """Runs several all-reduces, and those that fail again, until all are committed.

        Args:
            descriptors: what to do; their tags must differ.
            max_in_flight: operations open at a time at most.

        Returns:
            Sums over all that were committed. Each is committed once, but when members are lost in
            between, different operations may have had different members.

        Raises:
            PCCLError: TOO_FEW_PEERS if no other member is left, INVALID_ARGUMENT if the members'
                calls differ, or whatever else no retry can mend. No operation is open then.
        """
        function = "all_reduce_multiple_with_retry"

        def start(descriptor: ReduceOpDescriptor) -> AsyncReduceHandle:
            what = descriptor.reduce_descriptor
            return self._keep(
                self._start(
                    function,
                    descriptor.send,
                    descriptor.recv,
                    op=what.op,
                    tag=what.tag,
                    operand=what.operand_descriptor,
                    quantization=what.quantization_options,
                    timeout=None,
                )
            )

        return Batch(function, descriptors, max_in_flight, start).run()

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
        tensors = [
            (tensor.name, tensor.array, int(tensor.dtype), tensor.allow_content_inequality)
            for tensor in shared_state.tensors
        ]
        tx_bytes, rx_bytes, revision = self._native.sync_shared_state(
            tensors, shared_state.revision, int(SharedStateSyncStrategy(strategy)), timeout
        )
        shared_state.revision = revision
        return SharedStateSyncInfo(tx_bytes, rx_bytes)

    @property
    def member_id(self) -> int | None:
        """The number of this peer in the run, never given twice; none while it is no member."""
        return self._native.member_id()

    def members(self) -> list[int]:
        """Numbers of the members of the own peer group, in the order of the ring, as of the last
        call that returned; empty while not connected. The place in this list is the rank."""
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

    def _keep(self, operation: _native.Operation) -> AsyncReduceHandle:
        if len(self._open) >= FORGET_FROM:
            self._open = {handle for handle in self._open if not handle.is_done()}
        handle = AsyncReduceHandle(operation, self._forget)
        self._open.add(handle)
        return handle

    def _forget(self, handle: AsyncReduceHandle) -> None:
        self._open.discard(handle)

    def _start(
        self,
        function: str,
        send: Array,
        recv: Array,
        *,
        op: ReduceOp,
        tag: int,
        operand: ReduceOperandDescriptor | None,
        quantization: QuantizationOptions | None,
        timeout: float | None,
    ) -> _native.Operation:
        check_supported(function, quantization)
        have = data_type_of(function, "send", send)
        if (other := data_type_of(function, "recv", recv)) is not have:
            raise ArgumentError(function, f"send is {have.name}, but recv is {other.name}")
        if operand is not None and operand.datatype != have:
            want = DataType(operand.datatype).name
            raise ArgumentError(function, f"the arrays are {have.name}, the descriptor {want}")
        _check_range("tag", tag, 64)
        return self._native.all_reduce(
            function, send, recv, int(have), int(ReduceOp(op)), tag, timeout
        )


def _read(stream: _native.Events) -> Iterator[Event]:
    while (raw := stream.next(None)) is not None:
        kind, text, fields = raw
        yield Event(kind, text, fields)


def _check_range(name: str, value: Any, bits: int) -> None:
    if not isinstance(value, int) or not 0 <= value < 1 << bits:
        raise ArgumentError("Communicator", f"{name} is {value!r}; it must fit {bits} bits")
