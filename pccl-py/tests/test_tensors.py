"""Tensors of all sorts: never copied, or refused in words."""

from __future__ import annotations

import array
import gc
import mmap
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pccl
import pytest
from group import each, run_of, together
from pccl import DataType, ReduceOp


class Exporter:
    """A tensor of a library that knows DLPack, and nothing of this one."""

    def __init__(self, source: Any, device: int = 1, *, versioned: bool = True) -> None:
        self.source = source
        self.device = device
        self.versioned = versioned

    def __dlpack__(self, **options: Any) -> Any:
        if options and not self.versioned:
            raise TypeError("no options in those days")
        return self.source.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (self.device, 0)


@pytest.fixture(scope="module")
def pair() -> Iterator[list[pccl.Communicator]]:
    with run_of(2) as peers:
        yield peers


def numbers(count: int = 1000) -> np.ndarray[Any, Any]:
    return np.arange(count, dtype=np.float32)


def anonymous_map() -> mmap.mmap:
    mapped = mmap.mmap(-1, 4096)
    mapped[:] = bytes(range(256)) * 16
    return mapped


# What makes one, and how to see it as a numpy array.
SORTS: dict[str, tuple[Callable[[], Any], Callable[[Any], np.ndarray[Any, Any]]]] = {
    "numpy": (numbers, np.asarray),
    "two dimensions": (lambda: numbers().reshape(10, 100), np.asarray),
    "no dimension": (lambda: np.array(3.0), np.asarray),
    "numpy, empty": (lambda: np.empty((0, 3), np.int16), np.asarray),
    "memmap": (lambda: np.frombuffer(anonymous_map(), np.uint16), np.asarray),
    "bytearray": (lambda: bytearray(range(200)), lambda x: np.frombuffer(x, np.uint8)),
    "array": (lambda: array.array("d", range(100)), lambda x: np.frombuffer(x, np.float64)),
    "memoryview": (lambda: numbers().data, np.asarray),
    "mmap": (anonymous_map, lambda x: np.frombuffer(x, np.uint8)),
    "dlpack": (lambda: Exporter(numbers()), lambda x: np.asarray(x.source)),
    "dlpack, old": (
        lambda: Exporter(numbers(), versioned=False),
        lambda x: np.asarray(x.source),
    ),
    "dlpack, int16": (
        lambda: Exporter(np.arange(9, dtype=np.int16).reshape(3, 3)),
        lambda x: np.asarray(x.source),
    ),
}


@pytest.mark.parametrize("sort", SORTS)
def test_it_is_reduced_in_its_own_memory(pair: list[pccl.Communicator], sort: str) -> None:
    make, see = SORTS[sort]

    def reduce(index: int, peer: pccl.Communicator) -> None:
        own = make()
        before = see(own).copy()
        info = peer.all_reduce(own, own, op=ReduceOp.SUM)
        assert info.local_world_size == 2
        np.testing.assert_array_equal(see(own), before + before)
        # From one sort to another.
        out = np.empty_like(before)
        peer.all_reduce(own, out, op=ReduceOp.MAX)
        np.testing.assert_array_equal(out, before + before)

    each(pair, reduce)


@pytest.mark.parametrize("sort", SORTS)
def test_it_is_synchronised_in_its_own_memory(sort: str) -> None:
    make, see = SORTS[sort]

    def sync(index: int, peer: pccl.Communicator) -> bytes:
        own = make()
        if index:
            see(own).fill(0)
        state = pccl.SharedState([pccl.TensorInfo.from_tensor(own, "x")])
        strategy = pccl.SharedStateSyncStrategy
        peer.sync_shared_state(state, strategy.RECEIVE_ONLY if index else strategy.SEND_ONLY)
        return see(own).tobytes()

    with run_of(2) as peers:
        first, second = each(peers, sync)
    assert first == second == see(make()).tobytes()


def read_only() -> np.ndarray[Any, Any]:
    x = numbers()
    x.flags.writeable = False
    return x


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "read-only array": (read_only, "recv is read-only"),
    "bytes": (lambda: bytes(4000), "recv is read-only"),
    "read-only buffer": (lambda: read_only().data, "recv is read-only"),
    "strided": (lambda: numbers(2000)[::2], "not C-contiguous.*copy"),
    "reversed": (lambda: numbers()[::-1], "not C-contiguous"),
    "columns first": (lambda: numbers().reshape(10, 100).T, "not C-contiguous"),
    "strided buffer": (lambda: numbers(2000).data[::2], "not C-contiguous"),
    "dlpack, strided": (lambda: Exporter(numbers(2000)[::2]), "not C-contiguous"),
    "dlpack on a GPU": (lambda: Exporter(numbers(), device=2), "on a device .*only CPU"),
    "dlpack, complex": (lambda: Exporter(np.ones(4, np.complex64)), "element type"),
    "dlpack, read-only": (lambda: Exporter(read_only()), "read-?only"),
    "booleans": (lambda: np.ones(4, np.bool_), "dtype bool cannot be reduced"),
    "text": (lambda: "text", "recv is a str; a numpy array"),
    "list": (lambda: [1.0], "recv is a list"),
    "nothing": (lambda: None, "recv is a NoneType"),
    "pairs": (lambda: np.zeros(4, "f4,f4").data, "cannot be reduced"),
}


@pytest.mark.parametrize("sort", REFUSED)
def test_it_is_refused_in_words(pair: list[pccl.Communicator], sort: str) -> None:
    make, why = REFUSED[sort]
    own = make()
    with pytest.raises(pccl.ArgumentError, match=why) as raised:
        pair[0].all_reduce(numbers(), own, op=ReduceOp.SUM)
    assert isinstance(raised.value, ValueError)
    assert raised.value.result is pccl.Result.INVALID_ARGUMENT
    assert raised.value.func_name == "all_reduce"


def test_what_cannot_be_written_can_be_sent(pair: list[pccl.Communicator]) -> None:
    def reduce(_: int, peer: pccl.Communicator) -> None:
        out = bytearray(16)
        peer.all_reduce(bytes(range(16)), out, op=ReduceOp.MAX)
        assert out == bytes(range(16))

    each(pair, reduce)


def test_an_export_is_given_back(pair: list[pccl.Communicator]) -> None:
    gone: list[str] = []

    class Watched(np.ndarray[Any, Any]):
        def __del__(self) -> None:
            gone.append("gone")

    def reduce(index: int, peer: pccl.Communicator) -> None:
        handle = peer.all_reduce_async(
            Exporter(numbers().view(Watched)), Exporter(numbers().view(Watched)), op=ReduceOp.SUM
        )
        assert handle.wait()[0]

    each(pair, reduce)
    gc.collect()
    assert len(gone) >= 4, "the deleter was called, and the arrays went with their exports"


def test_bfloat16_of_ml_dtypes(pair: list[pccl.Communicator]) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")

    def reduce(index: int, peer: pccl.Communicator) -> None:
        x = np.full(100, 1.5 + index, ml_dtypes.bfloat16)
        peer.all_reduce(x, x, op=ReduceOp.SUM)
        assert (x == 4).all()

    each(pair, reduce)
    assert DataType.from_numpy_dtype(ml_dtypes.bfloat16) is DataType.BFLOAT16
    assert DataType.BFLOAT16.to_numpy_dtype() == ml_dtypes.bfloat16


def test_operations_of_one_call_may_not_share_memory(pair: list[pccl.Communicator]) -> None:
    memory = np.zeros(100)

    def batch(*pairs: tuple[Any, Any]) -> list[pccl.ReduceOpDescriptor]:
        kind = pccl.ReduceOperandDescriptor(DataType.DOUBLE)
        return [
            pccl.ReduceOpDescriptor.from_tensor(
                send, recv, pccl.ReduceDescriptor(10, ReduceOp.SUM, tag, kind)
            )
            for tag, (send, recv) in enumerate(pairs)
        ]

    a, b, c = memory[:10], memory[5:15], memory[50:60]
    for wrong in (batch((a, a), (b, b)), batch((a, c), (b, c)), batch((a, a), (b, c))):
        with pytest.raises(pccl.ArgumentError, match="share memory"):
            pair[0].all_reduce_multiple_with_retry(wrong)
    # What is only read may be read twice.
    right = batch((a, c), (a, memory[60:70]))
    other = batch((np.zeros(10), np.zeros(10)), (np.zeros(10), np.zeros(10)))
    together(
        [
            lambda: pair[0].all_reduce_multiple_with_retry(right),
            lambda: pair[1].all_reduce_multiple_with_retry(other),
        ]
    )
