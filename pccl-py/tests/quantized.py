"""Quantised all-reduce as docs/numerics.md says it, in plain numpy: none of the library's code.

Data travels in blocks with two parameters and a code for each element. The first member of a slice
quantises its own contribution; each further one reads the blocks that come, adds its own, and
quantises anew; the last one finishes and quantises once more, and everybody reads those codes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pccl
from pccl import Algorithm, DataType, QuantizationAlgorithm, ReduceOp
from reference import CANONICAL_NAN, Array, bits, fold

NARROW = (DataType.FLOAT16, DataType.BFLOAT16)
LAST_CODE = {DataType.UINT8: 255, DataType.INT8: 255, DataType.UINT16: 65535, DataType.INT16: 65535}


class Form:
    """One way to quantise one element type."""

    def __init__(self, data_type: DataType, algorithm: QuantizationAlgorithm, to: DataType) -> None:
        self.data_type, self.algorithm = data_type, algorithm
        self.last_code = LAST_CODE[to]
        self.real: Any = np.float64 if data_type is DataType.DOUBLE else np.float32
        self.width = 1 if self.last_code == 255 else 2
        self.block = 64 * np.dtype(self.real).itemsize
        self.whole = self.real(2.0) ** np.finfo(self.real).nmant

    def wire_bytes(self, count: int) -> int:
        """What `count` elements of a slice take on the wire."""
        blocks = -(-count // self.block)
        return int(count * self.width + blocks * 2 * np.dtype(self.real).itemsize)

    def encode(self, values: Array) -> tuple[Array, Array]:
        """Parameters and codes of one block of at least one element."""
        real, finite = self.real, values[np.isfinite(values)]
        special = finite.size < values.size
        last_code = self.last_code - 3 * special
        last = real(last_code)
        low = finite.min() + real(0) if finite.size else real(0)
        high = finite.max() + real(0) if finite.size else real(0)
        part = real(1) if np.isfinite(high - low) else real(0.5)
        if low == high:
            if self.algorithm is QuantizationAlgorithm.MIN_MAX:
                first, step = low, real(0)
            else:
                first, step = np.sign(low), np.abs(low)
            positions = np.zeros_like(values)
        elif self.algorithm is QuantizationAlgorithm.MIN_MAX:
            part_of_step = self._step(high * part - low * part, last)
            first, step = low, part_of_step / part
            positions = (values * part - low * part) / part_of_step
        else:
            step = self._step(high * part - low * part, last - real(1)) / part
            step = max(step, max(abs(low), abs(high)) / self.whole)
            first = np.rint(low / step)
            positions = values / step - first
        codes = np.rint(np.clip(np.where(np.isfinite(values), positions, 0), 0, last))
        codes = codes.astype(np.int64)
        codes[np.isneginf(values)] = last_code + 1
        codes[np.isposinf(values)] = last_code + 2
        codes[np.isnan(values)] = last_code + 3
        return np.array([first, -step if special else step], real), codes

    def decode(self, parameters: Array, codes: Array, limit: Any) -> Array:
        """Numbers of one block; what is finite stays within `limit`."""
        real = self.real
        first, step = parameters[0], np.abs(parameters[1])
        last_code = self.last_code - 3 * bool(np.signbit(parameters[1]))
        numbers = self._numbers(first, step, codes.astype(real))
        ends = self._numbers(first, step, np.array([0, last_code], real))
        if not (ends[0] >= -limit and ends[1] <= limit):
            if self.algorithm is QuantizationAlgorithm.MIN_MAX:
                half = first * real(0.5) + codes.astype(real) * (step * real(0.5))
                numbers = half + half
            numbers = np.clip(numbers, -limit, limit)
        numbers[codes == last_code + 1] = -np.inf
        numbers[codes == last_code + 2] = np.inf
        numbers[codes == last_code + 3] = np.nan
        return np.asarray(numbers)

    def _numbers(self, first: Any, step: Any, codes: Array) -> Array:
        if self.algorithm is QuantizationAlgorithm.MIN_MAX:
            return np.asarray(first + codes * step)
        return np.asarray((codes + first) * step)

    def _step(self, span: Any, steps: Any) -> Any:
        step = span / steps
        return np.nextafter(step, self.real(np.inf)) if step * steps < span else step


def all_reduce(
    contributions: list[Array], op: ReduceOp, form: Form, way: Algorithm = Algorithm.RING
) -> Array:
    """What every member ends with; contributions in the order of the ring."""
    world, count = len(contributions), contributions[0].size
    result = np.empty_like(contributions[0])
    base, longer = divmod(count, world)
    start = 0
    for first in range(world):
        end = start + base + (first < longer)
        for at in range(start, end, form.block):
            block = slice(at, min(at + form.block, end))
            ordered = [contributions[(first + i) % world][block] for i in range(world)]
            with np.errstate(all="ignore"):
                result[block] = _reduce(ordered, op, form, way)
        start = end
    assert start == count
    return result


def _reduce(ordered: list[Array], op: ReduceOp, form: Form, way: Algorithm) -> Array:
    dtype, real = ordered[0].dtype, form.real
    most = np.finfo(real).max
    partial = ordered[0].astype(real)
    for own in ordered[1:]:
        if way is Algorithm.DIRECT:
            # Each contribution but the owner's travels quantised, and no sum of them does.
            incoming = form.decode(*form.encode(own.astype(real)), most)
            partial = np.asarray(fold(partial, incoming, op))
            continue
        incoming = form.decode(*form.encode(partial), most)
        partial = np.asarray(fold(incoming, own.astype(real), op))
    if op is ReduceOp.AVG:
        partial = np.asarray(partial / real(len(ordered)))
    # Rounded as if it travelled as it is: what is too large for the type is infinite.
    finished = partial.astype(dtype).astype(real)
    limit = real(largest(form.data_type))
    elements = form.decode(*form.encode(finished), limit).astype(dtype)
    bits(elements)[np.isnan(elements)] = CANONICAL_NAN[form.data_type]
    return np.asarray(elements)


def largest(data_type: DataType) -> float:
    """Greatest finite number of a type."""
    if data_type is DataType.BFLOAT16:
        return float(np.array(0x7F7F0000, np.uint32).view(np.float32))
    return float(np.finfo(data_type.to_numpy_dtype()).max)


def forms(data_type: DataType, op: ReduceOp) -> list[tuple[QuantizationAlgorithm, DataType]]:
    """All ways to quantise a type that save something and go with the operator."""
    size = data_type.to_numpy_dtype().itemsize
    found = []
    for algorithm in (QuantizationAlgorithm.MIN_MAX, QuantizationAlgorithm.ZERO_POINT_SCALE):
        if algorithm is QuantizationAlgorithm.MIN_MAX or op in (ReduceOp.SUM, ReduceOp.AVG):
            found += [(algorithm, to) for to in LAST_CODE if to.to_numpy_dtype().itemsize < size]
    return found


def options(algorithm: QuantizationAlgorithm, to: DataType) -> pccl.QuantizationOptions:
    return pccl.QuantizationOptions(to, algorithm)
