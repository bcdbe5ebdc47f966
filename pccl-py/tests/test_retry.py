"""Several all-reduces with retries: what was done is done once, and said; the rest is as it was."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import numpy as np
import pccl
import pytest
from child import Child
from group import LIMIT_S, each, failure, gather, master, run_of, together
from pccl import Attribute, DataType, ReduceOp, Result

Array = np.ndarray[Any, Any]


def operand(count: int, tag: int, op: ReduceOp = ReduceOp.SUM) -> pccl.ReduceDescriptor:
    return pccl.ReduceDescriptor(count, op, tag, pccl.ReduceOperandDescriptor(DataType.DOUBLE))


def batch_of(arrays: list[Array]) -> list[pccl.ReduceOpDescriptor]:
    return [
        pccl.ReduceOpDescriptor.from_numpy(x, x, operand(x.size, tag))
        for tag, x in enumerate(arrays)
    ]


def test_what_was_moved_is_counted_once() -> None:
    with run_of(2) as peers:

        def reduce(_: int, peer: pccl.Communicator) -> tuple[int, int, int]:
            arrays = [np.ones(1000) for _ in range(9)]
            info = peer.all_reduce_multiple_with_retry(batch_of(arrays), max_in_flight=2)
            assert all((x == 2).all() for x in arrays)
            return info.local_world_size, info.tx_bytes, info.rx_bytes

        # Each sends half of a tensor as it is, and half as the result.
        assert each(peers, reduce) == [(2, 72_000, 72_000)] * 2


def test_a_failure_in_between_is_repeated_and_not_counted_twice() -> None:
    with run_of(2) as peers:
        given = [np.ones(1000) for _ in range(4)]

        def patient(peer: pccl.Communicator) -> pccl.ReduceInfo:
            return peer.all_reduce_multiple_with_retry(batch_of(given), max_in_flight=4)

        def impatient(peer: pccl.Communicator) -> None:
            # Gives tag 2 up once, which fails it at both, and then takes part in all.
            x = np.ones(1000)
            handle = peer.all_reduce_async(x, x, op=ReduceOp.SUM, tag=2)
            handle.cancel()
            committed, _, _ = handle.wait()
            rest = [np.ones(1000) for _ in range(4)]
            for tag in (0, 1, 3) if committed else (0, 1, 2, 3):
                while True:
                    handle = peer.all_reduce_async(rest[tag], rest[tag], op=ReduceOp.SUM, tag=tag)
                    if handle.wait()[0]:
                        break

        info, _ = together([lambda: patient(peers[0]), lambda: impatient(peers[1])])
        assert isinstance(info, pccl.ReduceInfo)
        assert (info.local_world_size, info.tx_bytes) == (2, 4 * 8000)
        assert all((x == 2).all() for x in given)


def test_an_error_says_which_were_done() -> None:
    with run_of(2) as peers:
        given = [np.ones(10) for _ in range(5)]

        def leaves(peer: pccl.Communicator) -> None:
            for tag in range(2):
                x = np.ones(10)
                peer.all_reduce(x, x, op=ReduceOp.SUM, tag=tag)
            peer.leave()

        def stays(peer: pccl.Communicator) -> None:
            with pytest.raises(pccl.PCCLError) as raised:
                peer.all_reduce_multiple_with_retry(batch_of(given), max_in_flight=2)
            assert raised.value.result is Result.TOO_FEW_PEERS
            assert raised.value.committed == (0, 1)
            assert raised.value.func_name == "all_reduce_multiple_with_retry"
            assert [x[0] for x in given] == [2, 2, 1, 1, 1]
            # Nothing is in flight.
            peer.update_topology()

        together([lambda: stays(peers[0]), lambda: leaves(peers[1])])


def test_members_that_disagree_are_told_and_do_not_try_again() -> None:
    with run_of(2) as peers:

        def disagree(index: int, peer: pccl.Communicator) -> pccl.PCCLError:
            arrays = [np.ones(10), np.ones(10 + index)]
            return failure(lambda: peer.all_reduce_multiple_with_retry(batch_of(arrays)))

        for error in each(peers, disagree):
            assert error.result is Result.INVALID_ARGUMENT and not error.retryable
            assert "10 x F64" in str(error) and "11 x F64" in str(error)


def test_a_limit_ends_the_repetitions() -> None:
    with run_of(2) as peers:
        x = np.ones(10)
        begin = time.monotonic()
        error = failure(lambda: peers[0].all_reduce_multiple_with_retry(batch_of([x]), timeout=0.2))
        assert time.monotonic() - begin < 10
        assert error.result is Result.RANK_CONNECTION_LOST and error.committed == ()
        assert (x == 1).all()


def test_wrong_descriptors_are_refused_before_anything_begins() -> None:
    with run_of(2) as peers:
        x, y = np.ones(3), np.ones(3)
        twice = [
            pccl.ReduceOpDescriptor.from_numpy(x, x, operand(3, 1)),
            pccl.ReduceOpDescriptor.from_numpy(y, y, operand(3, 1)),
        ]
        wrong: list[tuple[list[pccl.ReduceOpDescriptor], int, str]] = [
            ([], 4, "no descriptor"),
            (batch_of([x]), 0, "max_in_flight"),
            (twice, 4, "tag"),
        ]
        for descriptors, most, why in wrong:
            with pytest.raises(pccl.ArgumentError, match=why):
                peers[0].all_reduce_multiple_with_retry(descriptors, max_in_flight=most)
        x.resize(4, refcheck=False)
        with pytest.raises(pccl.ArgumentError, match="4 x DOUBLE; the descriptor says 3"):
            peers[0].all_reduce_multiple_with_retry(twice[:1])


def test_a_background_thread_reduces_while_the_main_one_asks_for_newcomers() -> None:
    """One step delayed, as the asynchronous loop of PCCL 1.0."""
    with run_of(2) as peers:

        def work(_: int, peer: pccl.Communicator) -> float:
            total = 0.0
            for step in range(20):
                change = [np.full(500, float(step)) for _ in range(6)]
                infos: list[pccl.ReduceInfo] = []

                def reduce(change: list[Array] = change, infos: Any = infos) -> None:
                    infos.append(
                        peer.all_reduce_multiple_with_retry(batch_of(change), max_in_flight=16)
                    )

                thread = threading.Thread(target=reduce)
                thread.start()
                for _ in range(3):
                    assert not peer.are_peers_pending()
                thread.join(LIMIT_S)
                assert infos and infos[0].local_world_size == 2
                total += sum(float(x[-1]) for x in change)
            return total

        assert each(peers, work) == [2.0 * 6 * sum(range(20))] * 2


VICTIM = """
import sys, numpy, pccl
peer = pccl.Communicator(sys.argv[1])
peer.connect()
while peer.get_attribute(pccl.Attribute.GLOBAL_WORLD_SIZE) < 3:
    if peer.are_peers_pending():
        peer.update_topology()
print("member", flush=True)
arrays = [numpy.full(20000, 100.0) for _ in range(40)]
kind = pccl.ReduceOperandDescriptor(pccl.DataType.DOUBLE)
peer.all_reduce_multiple_with_retry([
    pccl.ReduceOpDescriptor.from_numpy(
        x, x, pccl.ReduceDescriptor(20000, pccl.ReduceOp.SUM, tag, kind))
    for tag, x in enumerate(arrays)
], max_in_flight=3)
sys.stdin.read()
"""


@pytest.mark.skipif(os.name != "posix", reason="kills a process")
@pytest.mark.parametrize("after", [0, 5, 30])
def test_a_member_that_is_killed_leaves_sums_over_the_others_or_over_all(after: int) -> None:
    with master() as node, Child("-c", VICTIM, node.address) as victim:
        peers = [pccl.Communicator(node.address) for _ in range(2)]

        def join(_: int, peer: pccl.Communicator) -> None:
            peer.connect(timeout=LIMIT_S)
            gather(peer, 3)

        each(peers, join)
        assert victim.line() == "member"
        events = peers[0].events()

        def killer() -> None:
            verdicts = 0
            for event in events:
                verdicts += event.kind == "verdict"
                if verdicts > after:
                    break
            victim.process.send_signal(signal.SIGKILL)

        watcher = threading.Thread(target=killer)
        watcher.start()

        def reduce(index: int, peer: pccl.Communicator) -> list[float]:
            arrays = [np.full(20000, float(index + 1)) for _ in range(60)]
            info = peer.all_reduce_multiple_with_retry(batch_of(arrays), max_in_flight=3)
            assert info.local_world_size in (2, 3)
            for x in arrays:
                assert (x == x[0]).all(), "one operation, one set of members"
            return [float(x[0]) for x in arrays]

        first, second = each(peers, reduce)
        assert first == second
        assert set(first) <= {3.0, 103.0}
        assert set(first[40:]) == {3.0}, "of these it was no part"
        for peer in peers:
            assert peer.get_attribute(Attribute.GLOBAL_WORLD_SIZE) in (2, 3)
            peer.leave()
        watcher.join(LIMIT_S)
