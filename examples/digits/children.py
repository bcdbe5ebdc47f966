"""Starts the job's processes, hears them, and ends them whatever happens."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

HERE = Path(__file__).parent
ENVIRONMENT = {
    **os.environ,
    # Several processes share few cores: more threads in each would only get in each other's way.
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
    # The job itself says what happens.
    "PCCL_LOG_LEVEL": os.environ.get("PCCL_LOG_LEVEL", "ERR"),
}
GOODBYE_S = 5.0
"""Time for a process to end by itself before it is ended."""

Message = dict[str, Any]


class Late(Exception):
    """The time is up, or a process did not do its part."""


class Children:
    """The job's processes. Leaving the context ends them all.

    Args:
        limit: seconds from now that everything may take.
    """

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._deadline = time.monotonic() + limit
        self._master: subprocess.Popen[str] | None = None
        self._workers: dict[int, subprocess.Popen[str]] = {}
        self._said: queue.Queue[tuple[int, Message]] = queue.Queue()

    def start_master(self) -> str:
        """Starts a master on a port that is free; where it listens."""
        self._master = self._start(["-m", "pccl.master", "--listen-address=127.0.0.1:0"])
        heard: queue.Queue[str] = queue.Queue()
        output = self._master.stdout
        assert output is not None
        threading.Thread(target=lambda: heard.put(output.readline()), daemon=True).start()
        try:
            line = heard.get(timeout=self._left())
        except queue.Empty:
            raise Late("the master did not say where it listens") from None
        if not line.startswith("listening at "):
            raise Late("the master did not start")
        return line.removeprefix("listening at ").strip()

    def start_worker(self, index: int, *options: str) -> None:
        """Starts a peer; what it says comes out of `hear`, and that it has ended."""
        worker = self._start([str(HERE / "worker.py"), *options])
        self._workers[index] = worker
        threading.Thread(
            target=self._listen, args=(index, worker), name=f"hear {index}", daemon=True
        ).start()

    def tell(self, index: int, line: str) -> None:
        """Writes a line to a peer. One that is gone does not mind."""
        stdin = self._workers[index].stdin
        assert stdin is not None
        with contextlib.suppress(OSError):
            stdin.write(line + "\n")
            stdin.flush()

    def hear(self) -> tuple[int, Message] | None:
        """What the next peer says, with its index; none if all are silent for a while.

        Raises:
            Late: when the time is up.
        """
        try:
            return self._said.get(timeout=min(0.2, self._left()))
        except queue.Empty:
            return None

    def any_alive(self) -> bool:
        """Whether there is a peer that runs, or one that has not been heard out."""
        running = any(worker.poll() is None for worker in self._workers.values())
        return running or not self._said.empty() or self._listening()

    def __enter__(self) -> Children:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        workers = list(self._workers.values())
        for worker in workers:
            worker.kill()
        if self._master is not None:
            self._master.send_signal(signal.SIGTERM)
        for child in [*workers, *([self._master] if self._master else [])]:
            try:
                child.wait(GOODBYE_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()

    def _start(self, arguments: list[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
        )

    def _listen(self, index: int, worker: subprocess.Popen[str]) -> None:
        assert worker.stdout is not None
        for line in worker.stdout:
            self._said.put((index, json.loads(line)))
        status = worker.wait()
        # By the signal; where there are none, by the status that stands for it.
        killed = status in (-9, signal.SIGTERM)
        ended = {"what": "ended", "t": time.time(), "status": status, "killed": killed}
        self._said.put((index, ended))

    def _listening(self) -> bool:
        return any(thread.name.startswith("hear") for thread in threading.enumerate())

    def _left(self) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise Late(f"not done after {self._limit:.0f} s")
        return left
