"""Every float type, operator and quantisation, around the ring and direct, in groups of two to five
members that all use other numbers of connections and other frame sizes: the result is that of the
reference, to the bit, at each."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pccl
import pytest
from group import each, failure, run_of
from pccl import Algorithm, DataType, QuantizationAlgorithm, QuantizationOptions, ReduceOp, Result
from quantized import Form, all_reduce, forms, options
from reference import Array, bits
from test_numerics import FLOATS, contribution

COUNTS = (0, 1, 3, 257, 5_003, 140_001)
POOLS = (1, 2, 5, 3, 4)
SEGMENTS = (64, 4096, 1000, 65536, 262144)


@pytest.fixture(scope="module", params=[2, 3, 4, 5])
def peers(request: pytest.FixtureRequest) -> Iterator[list[pccl.Communicator]]:
    with run_of(request.param, pools=POOLS, segments=SEGMENTS) as members:
        yield members


@pytest.mark.parametrize("op", list(ReduceOp))
@pytest.mark.parametrize("data_type", FLOATS)
def test_the_result_is_the_references_at_every_member(
    peers: list[pccl.Communicator], data_type: DataType, op: ReduceOp
) -> None:
    if data_type is DataType.BFLOAT16:
        pytest.importorskip("ml_dtypes")
    order = peers[0].members()
    rank = [order.index(peer.member_id or 0) for peer in peers]
    cases = [
        (Form(data_type, algorithm, to), options(algorithm, to), COUNTS[place % len(COUNTS)])
        for place, (algorithm, to) in enumerate(forms(data_type, op) * 2)
    ]
    given = [
        [contribution([tag, place, data_type], count, data_type) for place in range(len(peers))]
        for tag, (_, _, count) in enumerate(cases)
    ]
    # Each form once around the ring, and once direct.
    ways = [
        Algorithm.RING if 2 * tag < len(cases) else Algorithm.DIRECT for tag in range(len(cases))
    ]
    expected = [
        all_reduce(contributions, op, form, ways[tag])
        for tag, (contributions, (form, _, _)) in enumerate(zip(given, cases, strict=True))
    ]

    def reduce_all(index: int, peer: pccl.Communicator) -> None:
        own = [contributions[rank[index]].copy() for contributions in given]
        # Every second operation in place; all at the same time.
        results = [x if tag % 2 else np.zeros_like(x) for tag, x in enumerate(own)]
        handles = [
            peer.all_reduce_async(
                own[tag],
                out,
                op=op,
                tag=tag,
                quantization_options=cases[tag][1],
                algorithm=ways[tag],
            )
            for tag, out in enumerate(results)
        ]
        for tag, handle in enumerate(handles):
            committed, _, info = handle.wait()
            assert committed, handle.error
            where = f"{data_type.name} {op.name} {cases[tag][1]} x {cases[tag][2]}"
            np.testing.assert_array_equal(bits(results[tag]), bits(expected[tag]), where)
            if tag % 2 == 0:
                same = bits(own[tag]) == bits(given[tag][rank[index]])
                assert same.all(), "the send buffer was modified"
            form, _, count = cases[tag]
            assert info.tx_bytes == sent(form, count, len(peers), rank[index], ways[tag])

    each(peers, reduce_all)


def sent(form: Form, count: int, world: int, rank: int, way: Algorithm) -> int:
    """Bytes that a member sends. Around the ring: every slice once as a partial and once as a
    result, except those that it finishes, and those that the next member finishes. Direct: its part
    of all slices but its own, and the result of that one to each of the others."""
    base, longer = divmod(count, world)
    size = [form.wire_bytes(base + (index < longer)) for index in range(world)]
    if way is Algorithm.DIRECT:
        return sum(size) - size[rank] + (world - 1) * size[rank]
    owner = [(index - 1) % world for index in range(world)]
    partials = sum(size[i] for i in range(world) if owner[i] != rank)
    results = sum(size[i] for i in range(world) if owner[i] != (rank + 1) % world)
    return partials + results


@pytest.fixture(scope="module")
def pair() -> Iterator[list[pccl.Communicator]]:
    with run_of(2) as members:
        yield members


MIN_MAX, ZERO_POINT = QuantizationAlgorithm.MIN_MAX, QuantizationAlgorithm.ZERO_POINT_SCALE


def test_the_default_options_quantise(pair: list[pccl.Communicator]) -> None:
    def reduce(_: int, peer: pccl.Communicator) -> int:
        x = np.linspace(0, 1, 5120, dtype=np.float32)
        exact = 2 * x
        info = peer.all_reduce(x, x, op=ReduceOp.SUM, quantization_options=QuantizationOptions())
        assert 0 < np.abs(x - exact).max() < 3 / 255 / 20
        return info.tx_bytes

    assert each(pair, reduce) == [2 * (2560 + 10 * 8)] * 2


def test_wide_types_send_the_data_as_it_is(pair: list[pccl.Communicator]) -> None:
    def reduce(_: int, peer: pccl.Communicator) -> None:
        x = np.full(100, 0.1)
        for to in (DataType.UINT32, DataType.INT64, DataType.DOUBLE, DataType.FLOAT):
            y = np.zeros_like(x)
            peer.all_reduce(x, y, op=ReduceOp.SUM, quantization_options=options(MIN_MAX, to))
            assert (y == 0.2).all()
        half = np.full(100, 0.1, np.float16)
        narrow = options(ZERO_POINT, DataType.UINT16)
        info = peer.all_reduce(half, half, op=ReduceOp.AVG, quantization_options=narrow)
        assert (half == np.float16(0.1)).all()
        # Partials of 16-bit floats travel as float32, results as they are.
        assert info.tx_bytes == 50 * 4 + 50 * 2

    each(pair, reduce)


def test_several_operations_quantise_each_as_it_says(pair: list[pccl.Communicator]) -> None:
    ways = [*(options(*way) for way in forms(DataType.FLOAT, ReduceOp.SUM)), None]

    def reduce(_: int, peer: pccl.Communicator) -> int:
        arrays = [np.full(4096, 42, np.float32) for _ in ways]
        operand = pccl.ReduceOperandDescriptor(DataType.FLOAT)
        descriptors = [
            pccl.ReduceOpDescriptor.from_numpy(
                x,
                x,
                pccl.ReduceDescriptor(4096, ReduceOp.SUM, tag, operand, way)
                if way is not None
                else pccl.ReduceDescriptor(4096, ReduceOp.SUM, tag, operand),
            )
            for tag, (x, way) in enumerate(zip(arrays, ways, strict=True))
        ]
        info = peer.all_reduce_multiple_with_retry(descriptors)
        assert all((x == 84).all() for x in arrays)
        return info.tx_bytes

    # Eight blocks a slice; four forms of 8 bits, four of 16, and one as it is.
    moved = 4 * (2048 + 8 * 8) + 4 * (2 * 2048 + 8 * 8) + 4 * 2048
    assert each(pair, reduce) == [2 * moved] * 2


@pytest.mark.parametrize(
    ("dtype", "op", "asked", "why"),
    [
        (np.int32, ReduceOp.SUM, options(MIN_MAX, DataType.UINT8), "cannot be quantised"),
        (np.float32, ReduceOp.MAX, options(ZERO_POINT, DataType.INT8), "sum and average"),
        (np.float32, ReduceOp.PROD, options(ZERO_POINT, DataType.UINT32), "sum and average"),
        (np.float32, ReduceOp.SUM, options(MIN_MAX, DataType.FLOAT16), "no type"),
    ],
)
def test_what_makes_no_sense_is_an_argument_error(
    pair: list[pccl.Communicator],
    dtype: type,
    op: ReduceOp,
    asked: QuantizationOptions,
    why: str,
) -> None:
    x: Array = np.ones(8, dtype)
    with pytest.raises(pccl.ArgumentError, match=why):
        pair[0].all_reduce(x, x, op=op, quantization_options=asked)


def test_members_that_quantise_differently_do_not_compute(pair: list[pccl.Communicator]) -> None:
    asked = [options(MIN_MAX, DataType.UINT8), options(MIN_MAX, DataType.INT8)]

    def reduce(index: int, peer: pccl.Communicator) -> None:
        x = np.arange(8, dtype=np.float32)
        error = failure(
            lambda: peer.all_reduce(x, x, op=ReduceOp.SUM, quantization_options=asked[index])
        )
        assert error.result is Result.INVALID_ARGUMENT
        assert (x == np.arange(8)).all()

    each(pair, reduce)
