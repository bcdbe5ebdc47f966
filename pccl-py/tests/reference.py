"""All-reduce as the rules of agreement say it (rule 9), in plain numpy: none of the library's code.

Contributions are added in the order of the ring, from the first member of the slice on. 16-bit
floats add up in float32 and are rounded once. Integers wrap in their type; an average then
truncates toward zero. Every NaN that comes out is the canonical one; -0 is less than +0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pccl
from pccl import ReduceOp

Array = npt.NDArray[Any]

UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
SIGNED = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}
CANONICAL_NAN = {
    pccl.DataType.FLOAT16: 0x7E00,
    pccl.DataType.BFLOAT16: 0x7FC0,
    pccl.DataType.FLOAT: 0x7FC00000,
    pccl.DataType.DOUBLE: 0x7FF8000000000000,
}


def all_reduce(contributions: list[Array], op: ReduceOp) -> Array:
    """What every member ends with; contributions in the order of the ring."""
    world, count = len(contributions), contributions[0].size
    data_type = pccl.DataType.from_numpy_dtype(contributions[0].dtype)
    result = np.empty_like(contributions[0])
    base, longer = divmod(count, world)
    start = 0
    for first in range(world):
        end = start + base + (first < longer)
        ordered = [contributions[(first + i) % world][start:end] for i in range(world)]
        result[start:end] = _reduce(ordered, op, data_type)
        start = end
    assert start == count
    return result


def bits(array: Array) -> Array:
    """The same memory as unsigned integers, to compare to the bit."""
    return array.view(UNSIGNED[array.dtype.itemsize])


def _reduce(ordered: list[Array], op: ReduceOp, data_type: pccl.DataType) -> Array:
    dtype = ordered[0].dtype
    narrow = data_type in (pccl.DataType.FLOAT16, pccl.DataType.BFLOAT16)
    partials = [part.astype(np.float32) for part in ordered] if narrow else ordered
    with np.errstate(all="ignore"):
        total = partials[0].copy()
        for part in partials[1:]:
            total = fold(total, part, op)
        if op is ReduceOp.AVG:
            total = _divide(total, len(ordered))
        total = total.astype(dtype)
    if data_type in CANONICAL_NAN:
        bits(total)[np.isnan(total)] = CANONICAL_NAN[data_type]
    return np.asarray(total)


def fold(left: Array, right: Array, op: ReduceOp) -> Array:
    match op:
        case ReduceOp.SUM | ReduceOp.AVG:
            return np.asarray(left + right)
        case ReduceOp.PROD:
            return np.asarray(left * right)
        case ReduceOp.MAX:
            chosen = np.where(_order(left) >= _order(right), left, right)
        case ReduceOp.MIN:
            chosen = np.where(_order(left) <= _order(right), left, right)
    if left.dtype.kind == "f":
        chosen[np.isnan(left) | np.isnan(right)] = np.nan
    return chosen


def _divide(total: Array, world: int) -> Array:
    if total.dtype.kind == "f":
        return np.asarray(total / total.dtype.type(world))
    divisor = total.dtype.type(world)
    quotient = total // divisor
    # numpy rounds down; truncation is one more where the quotient is negative and not whole.
    return np.asarray(quotient + ((total < 0) & (total % divisor != 0)).astype(total.dtype))


def _order(values: Array) -> Array:
    """Integers in the order of the values, -0 before +0."""
    if values.dtype.kind != "f":
        return values
    pattern = values.view(SIGNED[values.dtype.itemsize])
    low = np.iinfo(pattern.dtype).min
    return np.asarray(np.where(pattern < 0, low - pattern - 1, pattern))
