"""What becomes of peers and masters when the interpreter ends, or forks."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import time
import weakref
from typing import ClassVar, Protocol

from . import _native
from ._errors import PCCLError

RETURN_S = 1.0
"""How long threads that are about to return from a call get for it at the end."""
LOOK_S = 0.2
"""How often to see whether a master has ended, while nothing else keeps the process."""


class _Peer(Protocol):
    def leave(self) -> None: ...


class _Master(Protocol):
    def is_running(self) -> bool: ...
    def interrupt(self) -> None: ...


class _Living:
    """What there is in this process."""

    peers: ClassVar[weakref.WeakSet[_Peer]] = weakref.WeakSet()
    had_peers: ClassVar[bool] = False
    masters: ClassVar[set[_Master]] = set()


def leave_at_exit(peer: _Peer) -> None:
    """Has the peer leave its run in good order at the end of the interpreter."""
    _Living.peers.add(peer)
    _Living.had_peers = True


def serve(master: _Master) -> None:
    """Keeps the master until `unserve`, whoever else has forgotten it."""
    _Living.masters.add(master)


def unserve(master: _Master) -> None:
    """It was interrupted."""
    _Living.masters.discard(master)


def _end() -> None:
    if _serves_only():
        # As in PCCL 1.0, whose programs start a master and come to their end.
        with contextlib.suppress(KeyboardInterrupt):
            while any(master.is_running() for master in _Living.masters):
                time.sleep(LOOK_S)
    # Threads in a wait do not come back from it any more; those that are just coming back do.
    deadline = time.monotonic() + RETURN_S
    while not _native.ending() and time.monotonic() < deadline:
        time.sleep(0.001)
    for peer in list(_Living.peers):
        with contextlib.suppress(PCCLError):
            peer.leave()
    for master in list(_Living.masters):
        with contextlib.suppress(PCCLError):
            master.interrupt()


def _serves_only() -> bool:
    """Whether a master is all that this process was for: there was no peer, no error has ended it,
    and nobody types at it."""
    failed = getattr(sys, "last_value", None) is not None
    interactive = hasattr(sys, "ps1") or sys.flags.interactive
    return bool(_Living.masters) and not (_Living.had_peers or failed or interactive)


def _forked() -> None:
    _Living.peers = weakref.WeakSet()
    _Living.had_peers = False
    _Living.masters = set()


atexit.register(_end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
