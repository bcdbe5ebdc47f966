"""Several all-reduces, repeated until all are committed."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from ._errors import ArgumentError, PCCLError
from ._handle import AsyncReduceHandle
from ._types import ReduceInfo, ReduceOpDescriptor

Start = Callable[[ReduceOpDescriptor], AsyncReduceHandle]


class Batch:
    """Operations of which those with the lowest indices that are not committed are in flight, at
    every member alike: all get the same verdicts, so all take the same next steps.

    Args:
        function: who is at fault if the arguments are wrong.
        descriptors: what to do; each with a tag of its own.
        max_in_flight: operations open at a time at most.
        start: starts one.
    """

    def __init__(
        self,
        function: str,
        descriptors: list[ReduceOpDescriptor],
        max_in_flight: int,
        start: Start,
    ) -> None:
        tags = [descriptor.reduce_descriptor.tag for descriptor in descriptors]
        if not descriptors:
            raise ArgumentError(function, "there is no descriptor")
        if max_in_flight < 1:
            raise ArgumentError(function, f"max_in_flight is {max_in_flight}; at least 1 is needed")
        if len(set(tags)) != len(tags):
            raise ArgumentError(function, f"tags come more than once: {tags}")
        self._descriptors = descriptors
        self._max_in_flight = max_in_flight
        self._start = start
        self._to_do = list(range(len(descriptors)))
        self._flying: list[tuple[int, AsyncReduceHandle]] = []
        self._world, self._tx_bytes, self._rx_bytes = 0, 0, 0

    def run(self) -> ReduceInfo:
        """Runs all. What is still in flight when it fails is cancelled for all members."""
        try:
            while self._to_do or self._flying:
                self._fill()
                self._take_one()
        except PCCLError:
            self._cancel()
            for _, handle in self._flying:
                handle.wait()
            raise
        except BaseException:
            # Interrupted: the verdicts come without anybody waiting for them.
            self._cancel()
            raise
        return ReduceInfo(self._world, self._tx_bytes, self._rx_bytes)

    def _fill(self) -> None:
        while self._to_do and len(self._flying) < self._max_in_flight:
            index = self._to_do[0]
            self._flying.append((index, self._start(self._descriptors[index])))
            heapq.heappop(self._to_do)

    def _take_one(self) -> None:
        index, handle = self._flying[0]
        committed, _, info = handle.wait()
        del self._flying[0]
        if committed:
            self._world = info.local_world_size
            self._tx_bytes += info.tx_bytes
            self._rx_bytes += info.rx_bytes
        elif handle.error is not None and handle.error.retryable:
            heapq.heappush(self._to_do, index)
        elif handle.error is not None:
            raise handle.error

    def _cancel(self) -> None:
        for _, handle in self._flying:
            handle.cancel()
