"""Python processes of their own, for tests of what happens to a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable


class Child:
    """A Python process whose output is read line by line, with a limit."""

    def __init__(self, *arguments: str, environment: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
        )

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.communicate()

    def line(self, meanwhile: Callable[[], None] = lambda: None) -> str:
        """The next line; calls `meanwhile` ten times a second until it comes."""
        output = self.process.stdout
        assert output is not None
        lines: list[str] = []
        reader = threading.Thread(target=lambda: lines.append(output.readline()), daemon=True)
        reader.start()
        deadline = time.monotonic() + 30
        while reader.is_alive() and time.monotonic() < deadline:
            meanwhile()
            reader.join(0.1)
        assert lines, "the process says nothing"
        return lines[0].strip()

    def end(self, limit: float = 30) -> tuple[int, str, str]:
        """Exit status, and what is left of output and errors."""
        output, errors = self.process.communicate(timeout=limit)
        return self.process.returncode, output, errors


def start_master(*, limit: float | None = None) -> tuple[Child, str]:
    """A master in a process of its own, and its address. `limit`: the peer time-out."""
    if limit is None:
        child = Child("-m", "pccl.master", "--listen-address=127.0.0.1:0")
        return child, child.line().removeprefix("listening at ")
    child = Child(
        "-c",
        f"import pccl; m = pccl.MasterNode('127.0.0.1:0', peer_timeout={limit}); m.run(); "
        "print(m.address, flush=True)",
    )
    return child, child.line()
