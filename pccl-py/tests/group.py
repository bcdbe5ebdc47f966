"""A master and peers on loopback, for the tests. Each peer is used by a thread of its own."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import pccl

T = TypeVar("T")

LIMIT_S = 60.0
"""Longest time that a step of a test takes on a busy machine."""


def together(tasks: Sequence[Callable[[], T]]) -> list[T]:
    """Runs the tasks at the same time; their results, or the first error."""
    results: list[Any] = [None] * len(tasks)
    errors: list[BaseException] = []

    def run(index: int) -> None:
        try:
            results[index] = tasks[index]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(len(tasks))]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + LIMIT_S
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads), "a task hangs"
    return results


def each(
    peers: Sequence[pccl.Communicator], call: Callable[[int, pccl.Communicator], T]
) -> list[T]:
    """`call(index, peer)` for all peers at the same time."""
    return together([lambda i=i, p=p: call(i, p) for i, p in enumerate(peers)])  # type: ignore[misc]


def failure(call: Callable[[], Any]) -> pccl.PCCLError:
    """The error that the call ends with."""
    try:
        result = call()
    except pccl.PCCLError as error:
        return error
    raise AssertionError(f"it did not fail, but returned {result!r}")


def gather(peer: pccl.Communicator, size: int) -> None:
    """Lets newcomers in until the run has `size` members."""
    while peer.get_attribute(pccl.Attribute.GLOBAL_WORLD_SIZE) < size:
        if peer.are_peers_pending(timeout=LIMIT_S):
            peer.update_topology(timeout=LIMIT_S)
        else:
            time.sleep(0.002)


@contextlib.contextmanager
def master(**options: Any) -> Iterator[pccl.MasterNode]:
    """A running master on a free port."""
    node = pccl.MasterNode("127.0.0.1:0", **options)
    node.run()
    try:
        yield node
    finally:
        node.interrupt()


@contextlib.contextmanager
def run_of(
    size: int,
    *,
    pools: Sequence[int] = (0,),
    segments: Sequence[int | None] = (None,),
    groups: Sequence[int] = (0,),
    **options: Any,
) -> Iterator[list[pccl.Communicator]]:
    """A run with `size` members. Peer i takes the i-th of each option, from the start again when
    there are fewer."""
    with master(**options) as node:
        peers = [
            pccl.Communicator(
                node.address,
                groups[i % len(groups)],
                pools[i % len(pools)],
                name=f"peer {i}",
                segment_bytes=segments[i % len(segments)],
            )
            for i in range(size)
        ]

        def join(_: int, peer: pccl.Communicator) -> None:
            peer.connect(timeout=LIMIT_S)
            gather(peer, size)

        try:
            each(peers, join)
            yield peers
        finally:
            together([peer.leave for peer in peers])
