"""The master of a run."""

from __future__ import annotations

from typing import Any

from . import _native
from ._enums import Result
from ._errors import PCCLError
from ._lifetime import serve, unserve


class MasterNode:
    """Keeps the members of a run in agreement. No tensor passes through it.

    Once started, it serves until it is interrupted, or the process ends. A process that has started
    one, has had no peer, and comes to its end without an error stays until the master is stopped
    (Ctrl-C), as in PCCL 1.0.

    Args:
        listen_address: `host:port`: a name, an IPv4 address, or an IPv6 address in brackets. Port
            0 lets the system choose, and `address` tells.
        peer_timeout: seconds of silence after which a member counts as lost; 5 by default. Peers
            learn it when they join; the other limits of the run derive from it.
    """

    def __init__(self, listen_address: str, *, peer_timeout: float | None = None) -> None:
        self._listen_address = listen_address
        self._peer_timeout = peer_timeout
        self._native: _native.Master | None = None

    def run(self) -> None:
        """Starts listening, on threads of its own, and returns.

        Raises:
            PCCLError: INVALID_USAGE, if it was started before or cannot listen at the address.
        """
        if self._native is not None:
            raise PCCLError(Result.INVALID_USAGE, "MasterNode.run", "it was started already")
        self._native = _native.Master(self._listen_address, self._peer_timeout)
        serve(self)

    def interrupt(self) -> None:
        """Stops the master in good order: every call of every member fails at once. Returns when
        it has stopped. May be called again.

        Raises:
            PCCLError: INVALID_USAGE, if it was never started.
        """
        self._started("MasterNode.interrupt").stop()
        unserve(self)

    def is_running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._native is not None and self._native.is_running()

    @property
    def address(self) -> str:
        """Where it listens, as `ip:port`."""
        return self._started("MasterNode.address").address()

    def status(self) -> dict[str, Any]:
        """The run as the master sees it: members, groups, calls that wait, losses."""
        import json  # Not every program asks, and it takes a while.

        status: dict[str, Any] = json.loads(self._started("MasterNode.status").status())
        return status

    def _started(self, function: str) -> _native.Master:
        if self._native is None:
            raise PCCLError(Result.INVALID_USAGE, function, "call run first")
        return self._native
