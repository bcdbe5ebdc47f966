"""Synchronisation of the shared state."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pccl
import pytest
from group import LIMIT_S, each, failure, gather, master, run_of, together
from pccl import Result, SharedState, TensorInfo
from pccl import SharedStateSyncStrategy as Strategy

Array = np.ndarray[Any, Any]


def state_of(*arrays: Array, revision: int = 0) -> SharedState:
    tensors = [TensorInfo.from_numpy(array, f"tensor {i}") for i, array in enumerate(arrays)]
    state = SharedState(tensors)
    state.revision = revision
    return state


def test_states_are_checked_when_they_are_made() -> None:
    with pytest.raises(pccl.ArgumentError, match="at least one"):
        SharedState([])
    twice = TensorInfo.from_numpy(np.ones(3), "x")
    with pytest.raises(pccl.ArgumentError, match="'x'"):
        SharedState([twice, twice])
    with pytest.raises(pccl.ArgumentError, match="complex"):
        TensorInfo.from_numpy(np.ones(3, np.complex64), "x")
    state = state_of(np.ones(2))
    state.push_revision()
    assert state.revision == 1
    with pytest.raises(pccl.ArgumentError):
        state.revision = -1


def test_equal_states_move_nothing() -> None:
    with run_of(3) as peers:

        def sync(_: int, peer: pccl.Communicator) -> tuple[int, int, int]:
            state = state_of(np.arange(1000.0), np.ones(3, np.int8))
            infos = []
            for _ in range(3):
                info = peer.sync_shared_state(state)
                infos.append(info)
                state.push_revision()
            return state.revision, infos[-1].tx_bytes, infos[-1].rx_bytes

        assert each(peers, sync) == [(3, 0, 0)] * 3


def test_the_popular_content_reaches_the_odd_one_out() -> None:
    with run_of(3) as peers:

        def sync(index: int, peer: pccl.Communicator) -> tuple[Array, Array, int]:
            big = np.full(400_000, 7.0 if index else 5.0, np.float32)
            small = np.array([index > 0, 2, 3], np.int64)
            info = peer.sync_shared_state(state_of(big, small))
            return big, small, info.rx_bytes

        results = each(peers, sync)
        for big, small, _ in results:
            assert (big == 7).all() and small.tolist() == [1, 2, 3]
        fetched = [rx for _, _, rx in results]
        assert fetched[0] >= 1_600_000 and fetched[1:] == [0, 0]


def test_what_should_have_been_the_same_is_named_and_so_is_who_gave_what() -> None:
    with run_of(3) as peers:

        def sync(index: int, peer: pccl.Communicator) -> pccl.SharedStateSyncInfo:
            weights = np.zeros(1000, np.int64)
            state = state_of(np.ones(2), weights, revision=4)
            first = peer.sync_shared_state(state)
            assert not first.sources and not first.divergences
            assert peer.sync_progress() is None
            weights[10] = index == 2
            state.push_revision()
            return peer.sync_shared_state(state)

        infos = each(peers, sync)
        assert all(not info.divergences and not info.sources for info in infos[:2])
        ids = [peer.member_id for peer in peers]
        (divergence,) = infos[2].divergences
        assert (divergence.tensor, divergence.since) == ("tensor 1", 4)
        assert (divergence.begin, divergence.end) == (80, 81)
        assert set(divergence.holders) == {ids[0], ids[1]}
        assert infos[2].rx_bytes == 8000 == sum(infos[2].sources.values())
        assert infos[2].sources.keys() <= {ids[0], ids[1]}


def test_progress_says_rate_and_time_left() -> None:
    progress = pccl.SyncProgress(300, 100, 2.0)
    assert (progress.rate, progress.time_left) == (50.0, 4.0)
    assert pccl.SyncProgress(300, 0, 2.0).time_left is None


def test_a_newcomer_gets_content_and_revision() -> None:
    with master() as node:
        old, new = (pccl.Communicator(node.address) for _ in range(2))
        old.connect()
        state = state_of(np.arange(10.0))
        for _ in range(4):
            old.sync_shared_state(state)
            state.push_revision()
        together([new.connect, lambda: gather(old, 2)])
        content = np.zeros(10)
        fresh = state_of(content)
        together([lambda: old.sync_shared_state(state), lambda: new.sync_shared_state(fresh)])
        assert fresh.revision == state.revision == 4
        assert content.tolist() == list(range(10))
        new.leave()
        old.leave()


def test_receivers_only_receive_and_senders_only_send() -> None:
    with run_of(2) as peers:

        def sync(index: int, peer: pccl.Communicator) -> tuple[float, int, int]:
            content = np.full(5000, float(index))
            strategy = Strategy.SEND_ONLY if index else Strategy.RECEIVE_ONLY
            info = peer.sync_shared_state(state_of(content), strategy)
            return float(content.max()), info.tx_bytes, info.rx_bytes

        assert each(peers, sync) == [(1, 0, 40_000), (1, 40_000, 0)]


def test_leaving_ends_a_synchronisation_that_another_thread_is_in() -> None:
    with run_of(2) as peers:
        state = state_of(np.zeros(8))
        begins = threading.Event()

        def sync() -> None:
            begins.set()
            # The other member does not synchronise: without an end the call waits for it.
            with pytest.raises(pccl.PCCLError):
                peers[0].sync_shared_state(state)

        thread = threading.Thread(target=sync)
        thread.start()
        begins.wait()
        peers[0].leave()
        thread.join(LIMIT_S)
        assert not thread.is_alive()


def test_content_may_differ_where_it_is_allowed_to() -> None:
    with run_of(2) as peers:

        def sync(index: int, peer: pccl.Communicator) -> tuple[list[float], int]:
            mine = np.array([float(index)])
            free = TensorInfo.from_numpy(mine, "own", allow_content_inequality=True)
            info = peer.sync_shared_state(SharedState([free]))
            return mine.tolist(), info.rx_bytes

        assert each(peers, sync) == [([0.0], 0), ([1.0], 0)]


def test_states_of_different_shape_fail_and_say_what_differs() -> None:
    with run_of(2) as peers:

        def sync(index: int, peer: pccl.Communicator) -> pccl.PCCLError | None:
            content = np.zeros(5 + index)
            try:
                peer.sync_shared_state(state_of(content), timeout=30)
            except pccl.PCCLError as error:
                return error
            return None

        errors = [error for error in each(peers, sync) if error is not None]
        assert errors, "one at least is told"
        for error in errors:
            assert error.result in (Result.INVALID_USAGE, Result.INVALID_ARGUMENT)
            assert "tensor 0" in str(error)


def test_tensors_that_cannot_be_written_are_refused() -> None:
    with run_of(2) as peers:
        content = np.ones(3)
        content.flags.writeable = False
        error = failure(lambda: peers[0].sync_shared_state(state_of(content)))
        assert isinstance(error, pccl.ArgumentError)
        assert "tensor 0" in str(error) and "read-only" in str(error)
