"""Names, arguments, life cycle and errors of the interface."""

from __future__ import annotations

import gc
import pickle
import socket
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pccl
import pytest
from group import each, failure, gather, master, run_of, together
from pccl import (
    Attribute,
    DataType,
    ReduceDescriptor,
    ReduceOp,
    ReduceOpDescriptor,
    ReduceOperandDescriptor,
    Result,
)


@pytest.fixture
def pair() -> Iterator[list[pccl.Communicator]]:
    with run_of(2) as peers:
        yield peers


@pytest.fixture(scope="module")
def alone() -> Iterator[pccl.Communicator]:
    with master() as node:
        peer = pccl.Communicator(node.address)
        peer.connect()
        yield peer
        peer.leave()


def ones(count: int = 8) -> np.ndarray[Any, Any]:
    return np.ones(count, np.float32)


def test_everything_that_is_promised_is_there() -> None:
    assert all(hasattr(pccl, name) for name in pccl.__all__)
    assert pccl.__version__.startswith("2.")
    assert [op.value for op in ReduceOp] == [0, 1, 2, 3, 4]
    assert [data_type.value for data_type in DataType] == list(range(12))
    assert (DataType.INT16.value, DataType.UINT16.value) == (2, 3)
    assert [result.value for result in Result] == list(range(13))
    assert [attribute.value for attribute in Attribute] == [1, 2, 3, 4]


@pytest.mark.parametrize("data_type", list(DataType))
def test_data_types_and_dtypes_correspond(data_type: DataType) -> None:
    if data_type is DataType.BFLOAT16:
        pytest.importorskip("ml_dtypes")
    dtype = data_type.to_numpy_dtype()
    assert DataType.from_numpy_dtype(dtype) is data_type
    assert dtype.itemsize == data_type.itemsize


def test_other_dtypes_are_refused() -> None:
    for dtype in (np.bool_, np.complex64, ">f4", "U3"):
        with pytest.raises(ValueError, match="dtype"):
            DataType.from_numpy_dtype(dtype)


def test_a_peer_alone_has_nobody_to_reduce_with(alone: pccl.Communicator) -> None:
    assert [alone.get_attribute(attribute) for attribute in Attribute] == [1, 1, 1, 1]
    assert alone.members() == [alone.member_id]
    error = failure(lambda: alone.all_reduce(ones(), ones(), op=ReduceOp.SUM))
    assert error.result is Result.TOO_FEW_PEERS
    alone.update_topology()
    assert alone.are_peers_pending() is False


def test_calls_before_connect_are_wrong_usage() -> None:
    peer = pccl.Communicator("127.0.0.1:1")
    assert failure(peer.update_topology).result is Result.INVALID_USAGE
    assert failure(peer.are_peers_pending).result is Result.INVALID_USAGE
    x = ones()
    handle_or_error = failure(lambda: peer.all_reduce(x, x, op=ReduceOp.SUM))
    assert handle_or_error.result in (Result.INVALID_USAGE, Result.TOO_FEW_PEERS)
    assert peer.member_id is None
    assert peer.members() == []


def test_connecting_twice_is_wrong_usage(alone: pccl.Communicator) -> None:
    assert failure(alone.connect).result is Result.INVALID_USAGE


def test_a_master_that_is_not_there_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        peer = pccl.Communicator(address)
        error = failure(lambda: peer.connect(n_attempts=1))
    assert error.result is Result.MASTER_CONNECTION_FAILED
    assert error.func_name == "connect"
    assert address in str(error)
    assert error.phase and error.cause


def test_a_bad_address_is_an_argument_error() -> None:
    error = failure(lambda: pccl.Communicator("nowhere").connect(n_attempts=1))
    assert error.result is Result.MASTER_CONNECTION_FAILED
    assert "nowhere" in str(error)
    with pytest.raises(pccl.ArgumentError, match="peer_group"):
        pccl.Communicator("127.0.0.1:1", -1)
    with pytest.raises(pccl.ArgumentError, match="listen"):
        pccl.Communicator("127.0.0.1:1", listen="here")


def test_arrays_that_cannot_be_lent_are_refused(alone: pccl.Communicator) -> None:
    read_only = ones()
    read_only.flags.writeable = False
    strided = ones(16)[::2]
    cases: list[tuple[Any, Any, str]] = [
        (ones(), read_only, "read-only"),
        (strided, ones(), "not C-contiguous"),
        (ones(), strided, "not C-contiguous"),
        (np.ones((2, 4), np.float32, order="F"), ones(), "not C-contiguous"),
        (ones(), ones(9), "recv"),
        (ones(), np.ones(8, np.int32), "INT32"),
        ([1.0], ones(1), "list"),
        (np.ones(8, ">f4"), np.ones(8, ">f4"), "byte order"),
        (np.ones(8, np.complex64), np.ones(8, np.complex64), "complex64"),
    ]
    for send, recv, why in cases:
        with pytest.raises(pccl.ArgumentError, match=why):
            alone.all_reduce(send, recv, op=ReduceOp.SUM)
        with pytest.raises(ValueError, match=why):
            alone.all_reduce_async(send, recv, op=ReduceOp.SUM)


def test_a_read_only_array_may_be_sent_and_shapes_do_not_matter(
    pair: list[pccl.Communicator],
) -> None:
    send = np.arange(6, dtype=np.int64).reshape(2, 3)
    send.flags.writeable = False

    def reduce(_: int, peer: pccl.Communicator) -> None:
        recv = np.zeros(6, np.int64)
        info = peer.all_reduce(send, recv, op=ReduceOp.SUM)
        assert recv.tolist() == [0, 2, 4, 6, 8, 10]
        assert info.local_world_size == 2
        assert info.tx_bytes > 0 and info.rx_bytes > 0

    each(pair, reduce)


def test_members_go_by_the_algorithm_that_they_ask_for_and_by_the_environments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with run_of(3) as peers:

        def moved(index: int, peer: pccl.Communicator, algorithm: pccl.Algorithm) -> int:
            x = np.arange(3000.0) + index
            info = peer.all_reduce(x, x, op=ReduceOp.SUM, algorithm=algorithm)
            assert (x == 3 * np.arange(3000.0) + 3).all()
            return info.tx_bytes

        def by(algorithm: pccl.Algorithm) -> list[int]:
            return sorted(each(peers, lambda index, peer: moved(index, peer, algorithm)))

        assert by(pccl.Algorithm.RING) == by(pccl.Algorithm.DIRECT) == [32_000] * 3
        assert by(pccl.Algorithm.STAR) == [24_000, 24_000, 48_000]

        def differ(index: int, peer: pccl.Communicator) -> pccl.PCCLError:
            ways = (pccl.Algorithm.STAR, pccl.Algorithm.RING, pccl.Algorithm.RING)
            return failure(
                lambda: peer.all_reduce(ones(), ones(), op=ReduceOp.SUM, algorithm=ways[index])
            )

        for error in each(peers, differ):
            assert error.result is Result.INVALID_ARGUMENT
            assert "by star" in str(error) and "by ring" in str(error)
    monkeypatch.setenv("PCCL_ALGORITHM", "direct")
    with run_of(3) as peers:
        assert by(pccl.Algorithm.AUTOMATIC) == [32_000] * 3
    monkeypatch.setenv("PCCL_ALGORITHM", "round")
    with pytest.raises(pccl.ArgumentError, match="PCCL_ALGORITHM"):
        pccl.Communicator("127.0.0.1:1")


def test_memory_at_odd_addresses_can_be_reduced(pair: list[pccl.Communicator]) -> None:
    def reduce(_: int, peer: pccl.Communicator) -> None:
        raw = np.zeros(8 * 100 + 1, np.uint8)
        odd = np.frombuffer(raw.data, np.float64, 100, offset=1)
        odd[:] = 1.5
        peer.all_reduce(odd, odd, op=ReduceOp.PROD)
        assert (odd == 2.25).all()

    each(pair, reduce)


def test_buffers_that_overlap_in_part_are_refused(pair: list[pccl.Communicator]) -> None:
    memory = ones(12)
    with pytest.raises(pccl.ArgumentError, match="overlap"):
        pair[0].all_reduce(memory[:8], memory[4:], op=ReduceOp.SUM)


def test_a_tag_is_open_once(pair: list[pccl.Communicator]) -> None:
    x, y = ones(), ones()
    first = pair[0].all_reduce_async(x, x, op=ReduceOp.SUM, tag=5)
    for call in (pair[0].all_reduce_async, pair[0].all_reduce):
        error = failure(lambda call=call: call(y, y, op=ReduceOp.SUM, tag=5))  # type: ignore[misc]
        assert error.result is Result.INVALID_ARGUMENT and "tag 5" in str(error)
    assert (y == 1).all()
    assert failure(pair[0].update_topology).result is Result.PENDING_ASYNC_OPS
    pair[1].all_reduce(ones(), ones(), op=ReduceOp.SUM, tag=5)
    assert first.wait()[:2] == (True, 0)
    assert first.wait() == first.wait()
    assert (x == 2).all()


def test_a_handle_keeps_the_arrays_alive(pair: list[pccl.Communicator]) -> None:
    x = np.ones(100_000, np.float32)
    seen = weakref.ref(x)
    handle: Any = pair[0].all_reduce_async(x, x, op=ReduceOp.SUM)
    del x, handle
    gc.collect()
    assert seen() is not None, "nobody waits, but the operation still writes to it"
    y = np.ones(100_000, np.float32)
    pair[1].all_reduce(y, y, op=ReduceOp.SUM)
    kept = seen()
    assert kept is not None
    deadline = time.monotonic() + 20
    while kept[-1] != 2 and time.monotonic() < deadline:
        time.sleep(0.001)
    assert (kept == 2).all()


def test_members_that_disagree_are_all_told_how(pair: list[pccl.Communicator]) -> None:
    def disagree(index: int, peer: pccl.Communicator) -> pccl.PCCLError:
        x = ones(8 + index)
        error = failure(lambda: peer.all_reduce(x, x, op=ReduceOp.SUM))
        assert (x == 1).all()
        return error

    errors = each(pair, disagree)
    assert {error.result for error in errors} == {Result.INVALID_ARGUMENT}
    assert not any(error.retryable for error in errors)
    for error in errors:
        assert "8 x F32" in str(error) and "9 x F32" in str(error)


def test_calls_that_contradict_fail_for_all(pair: list[pccl.Communicator]) -> None:
    def contradict(index: int, peer: pccl.Communicator) -> pccl.PCCLError:
        x = ones()
        if index:
            return failure(peer.update_topology)
        return failure(lambda: peer.all_reduce(x, x, op=ReduceOp.SUM))

    errors = each(pair, contradict)
    assert {error.result for error in errors} == {Result.INVALID_ARGUMENT}
    assert all("update_topology" in str(error) for error in errors)


def test_a_time_limit_fails_for_all_and_gives_the_buffer_back(
    pair: list[pccl.Communicator],
) -> None:
    x = np.arange(50_000, dtype=np.float32)
    error = failure(lambda: pair[0].all_reduce(x, x, op=ReduceOp.SUM, timeout=0.1))
    assert error.result is Result.RANK_CONNECTION_LOST and error.retryable
    assert error.peer == pair[0].member_id
    assert "time limit" in str(error)
    np.testing.assert_array_equal(x, np.arange(50_000, dtype=np.float32))
    # The other's next call of that tag is the one that failed.
    y = ones()
    late = failure(lambda: pair[1].all_reduce(y, y, op=ReduceOp.SUM, timeout=20))
    assert late.result is Result.RANK_CONNECTION_LOST


def test_descriptors_check_their_arrays() -> None:
    descriptor = ReduceDescriptor(8, ReduceOp.SUM, 0, ReduceOperandDescriptor(DataType.FLOAT))
    ReduceOpDescriptor.from_numpy(ones(), ones(), descriptor)
    with pytest.raises(pccl.ArgumentError, match="send"):
        ReduceOpDescriptor.from_numpy(ones(7), ones(), descriptor)
    with pytest.raises(pccl.ArgumentError, match="recv"):
        ReduceOpDescriptor.from_numpy(ones(), np.ones(8), descriptor)


def test_groups_reduce_apart_and_share_the_run() -> None:
    with run_of(4, groups=(0, 7)) as peers:
        sizes = [[peer.get_attribute(attribute) for attribute in Attribute] for peer in peers]
        assert sizes == [[4, 2, 2, 2]] * 4

        def reduce(index: int, peer: pccl.Communicator) -> float:
            x = np.full(5, 10.0**index)
            peer.all_reduce(x, x, op=ReduceOp.SUM)
            return float(x[0])

        assert each(peers, reduce) == [101, 1010, 101, 1010]


def test_leaving_shrinks_the_run_and_one_may_join_again() -> None:
    with master() as node:
        first, second = (pccl.Communicator(node.address) for _ in range(2))
        first.connect()
        together([second.connect, lambda: gather(first, 2)])
        old = second.member_id
        second.leave()
        error = failure(lambda: first.all_reduce(ones(), ones(), op=ReduceOp.SUM, timeout=20))
        assert error.result in (Result.RANK_CONNECTION_LOST, Result.TOO_FEW_PEERS)
        assert first.get_attribute(Attribute.GLOBAL_WORLD_SIZE) == 1
        assert failure(second.update_topology).result is Result.INVALID_USAGE
        third = pccl.Communicator(node.address)
        together([third.connect, lambda: gather(first, 2)])
        assert third.member_id != old
        third.leave()
        first.leave()


def test_events_tell_what_happens(pair: list[pccl.Communicator]) -> None:
    events = pair[0].events()
    each(pair, lambda _, peer: peer.all_reduce(ones(), ones(), op=ReduceOp.SUM, tag=3))
    seen = []
    for event in events:
        seen.append(event)
        if event.kind == "verdict":
            break
    first = [event for event in seen if event.kind == "first_segment_sent"]
    assert first and first[0].fields["tag"] == 3
    assert seen[-1].fields["outcome"] == "commit"
    assert "tag 3" in str(seen[-1])
    pair[0].leave()
    assert all(event.text for event in events), "the stream ends with the membership"


def test_the_lock_of_the_interpreter_is_free_while_a_call_waits(
    pair: list[pccl.Communicator],
) -> None:
    x = ones()
    waiting = threading.Thread(target=lambda: pair[0].all_reduce(x, x, op=ReduceOp.SUM))
    waiting.start()
    count = sum(1 for _ in range(100_000))
    assert count == 100_000 and waiting.is_alive()
    pair[1].all_reduce(ones(), ones(), op=ReduceOp.SUM)
    waiting.join(20)
    assert not waiting.is_alive()


def test_a_stopped_master_fails_every_call_at_once() -> None:
    with master() as node:
        peers = [pccl.Communicator(node.address) for _ in range(2)]
        peers[0].connect()
        together([peers[1].connect, lambda: gather(peers[0], 2)])
        stopper = threading.Timer(0.2, node.interrupt)
        stopper.start()
        begin = time.monotonic()
        x = ones()
        error = failure(lambda: peers[0].all_reduce(x, x, op=ReduceOp.SUM))
        assert time.monotonic() - begin < 10
        assert error.result is Result.RANK_CONNECTION_LOST and "stopped" in str(error)
        stopper.join()
        assert not node.is_running()
        for peer in peers:
            peer.leave()


def test_a_master_starts_once_and_tells_its_status() -> None:
    node = pccl.MasterNode("127.0.0.1:0")
    assert failure(node.interrupt).result is Result.INVALID_USAGE
    node.run()
    assert failure(node.run).result is Result.INVALID_USAGE
    assert isinstance(node.status(), dict)
    other = pccl.MasterNode(node.address)
    assert node.address in str(failure(other.run))
    node.interrupt()
    node.interrupt()
    assert not node.is_running()


def test_destruction_in_any_order() -> None:
    node = pccl.MasterNode("127.0.0.1:0")
    node.run()
    peer = pccl.Communicator(node.address)
    peer.connect()
    node.interrupt()
    del node
    begin = time.monotonic()
    del peer
    gc.collect()
    assert time.monotonic() - begin < 10
    del_only = pccl.Communicator("127.0.0.1:1")
    del del_only
    pccl.MasterNode("127.0.0.1:1")


def test_errors_survive_pickling() -> None:
    error = pccl.PCCLError(Result.RANK_CONNECTION_LOST, "all_reduce", "gone", peer=3, phase="x")
    for original in (error, pccl.ArgumentError("f", "why")):
        copy = pickle.loads(pickle.dumps(original))
        assert type(copy) is type(original)
        assert (str(copy), copy.result, copy.peer) == (
            str(original),
            original.result,
            original.peer,
        )
    with pytest.raises(pccl.PCCLError):
        pccl.PCCLError.check(8, "f")
    pccl.PCCLError.check(0, "f")
