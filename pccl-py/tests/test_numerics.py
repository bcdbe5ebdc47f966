"""Every element type and operator, around the ring and direct, in groups of two to five members
that all use other numbers of connections and other frame sizes: the result is that of the
reference, to the bit, at each."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pccl
import pytest
from group import each, run_of
from pccl import Algorithm, DataType, ReduceOp
from reference import Array, all_reduce, bits

COUNTS = (0, 1, 2, 3, 7, 64, 1001, 40_007)
POOLS = (1, 2, 5, 3, 4)
SEGMENTS = (64, 4096, 1000, 65536, 262144)


@pytest.fixture(scope="module", params=[2, 3, 4, 5])
def peers(request: pytest.FixtureRequest) -> Iterator[list[pccl.Communicator]]:
    with run_of(request.param, pools=POOLS, segments=SEGMENTS) as members:
        yield members


def contribution(seed: list[int], count: int, data_type: DataType) -> Array:
    """Values that wrap, overflow, cancel, and carry signs and NaNs where the type has them."""
    random = np.random.default_rng(seed)
    dtype = data_type.to_numpy_dtype()
    if data_type not in FLOATS:
        limits = np.iinfo(dtype)
        return random.integers(limits.min, limits.max, count, dtype, endpoint=True)
    values: npt.NDArray[np.float64] = random.standard_normal(count) * 10.0 ** random.integers(
        -3, 4, count
    )
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1e-40, -1e-8, 6e4, 3e38])
    places = random.random(count) < 0.2
    values[places] = random.choice(special, int(places.sum()))
    with np.errstate(over="ignore"):
        return values.astype(dtype)


FLOATS = (DataType.FLOAT16, DataType.BFLOAT16, DataType.FLOAT, DataType.DOUBLE)


@pytest.mark.parametrize("op", list(ReduceOp))
@pytest.mark.parametrize("data_type", list(DataType))
def test_the_result_is_the_references_at_every_member(
    peers: list[pccl.Communicator], data_type: DataType, op: ReduceOp
) -> None:
    if data_type is DataType.BFLOAT16:
        pytest.importorskip("ml_dtypes")
    order = peers[0].members()
    rank = [order.index(peer.member_id or 0) for peer in peers]
    given = [
        [contribution([tag, place, data_type], count, data_type) for place in range(len(peers))]
        for tag, count in enumerate(COUNTS)
    ]
    expected = [all_reduce(contributions, op) for contributions in given]

    def reduce_all(index: int, peer: pccl.Communicator) -> None:
        own = [contributions[rank[index]].copy() for contributions in given]
        # Every second operation in place; all at the same time.
        results = [x if tag % 2 else np.zeros_like(x) for tag, x in enumerate(own)]
        pairs = zip(own, results, strict=True)
        # Both add the same slices in the same order.
        ways = (Algorithm.RING, Algorithm.DIRECT)
        handles = [
            peer.all_reduce_async(x, out, op=op, tag=tag, algorithm=ways[(tag + op // 2) % 2])
            for tag, (x, out) in enumerate(pairs)
        ]
        for tag, handle in enumerate(handles):
            committed, status, info = handle.wait()
            assert committed, handle.error
            assert status == 0
            assert info.local_world_size == len(peers)
            where = f"{data_type.name} {op.name} x {COUNTS[tag]}"
            np.testing.assert_array_equal(bits(results[tag]), bits(expected[tag]), where)
            if tag % 2 == 0:
                same = bits(own[tag]) == bits(given[tag][rank[index]])
                assert same.all(), "the send buffer was modified"

    each(peers, reduce_all)


def test_every_member_knows_the_same_ring(peers: list[pccl.Communicator]) -> None:
    rings = [peer.members() for peer in peers]
    assert all(ring == rings[0] for ring in rings)
    assert sorted(rings[0]) == sorted(peer.member_id or 0 for peer in peers)
