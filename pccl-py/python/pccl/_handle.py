"""An all-reduce on its way."""

from __future__ import annotations

from collections.abc import Callable

from . import _native
from ._enums import Result
from ._errors import PCCLError
from ._types import ReduceInfo


class AsyncReduceHandle:
    """An all-reduce that was started and may not have its verdict yet. Made by
    `Communicator.all_reduce_async`; keeps the tensors alive until the verdict is there.

    Attributes:
        error: why it failed, once `wait` has returned and it did.
    """

    def __init__(
        self,
        operation: _native.Operation,
        tag: int,
        forget: Callable[[AsyncReduceHandle, int], None],
    ) -> None:
        self._operation = operation
        self._tag = tag
        self._forget = forget
        self._outcome: tuple[bool, int, ReduceInfo] | None = None
        self.error: PCCLError | None = None

    def wait(self) -> tuple[bool, int, ReduceInfo]:
        """Waits for the verdict, with the interpreter's lock released.

        Returns:
            Whether it was committed, the result code as a number, and what was moved. Until the
            verdict is there the tensors must not be touched; after a failure they are as they
            were. May be called again, and then says the same.

        Raises:
            KeyboardInterrupt: see `Communicator`.
        """
        if self._outcome is None:
            try:
                moved = wait_for(self._operation)
            except PCCLError as error:
                self.error = error
                self._outcome = (False, int(error.result), ReduceInfo(0, 0, 0))
            else:
                self._outcome = (True, int(Result.SUCCESS), ReduceInfo(*moved))
            self._forget(self, self._tag)
        return self._outcome

    def is_done(self) -> bool:
        """Whether `wait` would return at once."""
        return self._outcome is not None or self._operation.is_done()

    def cancel(self) -> None:
        """Asks for the operation to fail at all members; `wait` then says what became of it,
        which may be success."""
        if self._outcome is None:
            self._operation.cancel()


def wait_for(operation: _native.Operation) -> tuple[int, int, int]:
    """Members, bytes sent and bytes received of a committed operation."""
    moved = operation.wait(None)
    assert moved is not None  # without a limit there is a verdict
    return moved
