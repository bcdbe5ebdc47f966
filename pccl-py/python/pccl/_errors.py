"""What is raised when a call fails."""

from __future__ import annotations

from typing import Any

from ._enums import Result


class PCCLError(Exception):
    """A call failed. `str()` says who, in which phase, and why.

    Attributes:
        result: the result code, as in the C interface; decides whether a retry makes sense.
        func_name: the function that failed.
        message: what happened, in one sentence or two.
        peer: number of the member it is about, where there is one.
        phase: what was going on: a call, or a step of getting a connection.
        cause: what the other side, the socket or the rule says.
        retryable: whether it failed at all members alike, for a reason that may be gone at the next
            call, as the loss of a member is. Not of PCCL 1.0, where the codes do not tell.
        committed: places, in the list, of the operations that were done all the same, where
            `all_reduce_multiple_with_retry` failed. Their buffers hold results.
    """

    def __init__(
        self,
        result: Result | int,
        func_name: str,
        message: str = "",
        *,
        peer: int | None = None,
        phase: str | None = None,
        cause: str | None = None,
        retryable: bool = False,
    ) -> None:
        self.result = Result(result)
        self.func_name = func_name
        self.message = message
        self.peer = peer
        self.phase = phase
        self.cause = cause
        self.retryable = retryable
        self.committed: tuple[int, ...] = ()
        text = f"{func_name}: {self.result.name} ({int(self.result)})"
        super().__init__(f"{text}: {message}" if message else text)

    def __reduce__(self) -> tuple[Any, ...]:
        # The default would call the constructor with the finished text.
        return (_rebuild, (type(self), self.args, self.__dict__))

    @staticmethod
    def check(result: Result | int, func_name: str) -> None:
        """Raises if `result` is not SUCCESS."""
        if result != Result.SUCCESS:
            raise PCCLError(result, func_name)


class ArgumentError(PCCLError, ValueError):
    """An argument cannot be used: a read-only or strided array, another type, another length."""

    def __init__(self, func_name: str, message: str) -> None:
        super().__init__(Result.INVALID_ARGUMENT, func_name, message)


def _rebuild(cls: type[PCCLError], args: tuple[Any, ...], state: dict[str, Any]) -> PCCLError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error
