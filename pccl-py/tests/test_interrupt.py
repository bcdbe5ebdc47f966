"""Ctrl-C: the first asks for an abort, the second returns at once. In processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pccl
import pytest
from group import gather

# A shell that runs tests in the background has its children ignore the signal of Ctrl-C.
WAITS = """
import signal, sys, time, numpy, pccl
signal.signal(signal.SIGINT, signal.default_int_handler)
peer = pccl.Communicator(sys.argv[1])
peer.connect()
while peer.get_attribute(pccl.Attribute.GLOBAL_WORLD_SIZE) < 2:
    if peer.are_peers_pending():
        peer.update_topology()
x = numpy.arange(1000.0)
state = pccl.SharedState([pccl.TensorInfo.from_numpy(x, "x")])
print("waits", flush=True)
try:
    CALL
except KeyboardInterrupt as interrupt:
    assert (x == numpy.arange(1000.0)).all()
    print("interrupted", repr(interrupt.__cause__), flush=True)
"""


ALL_REDUCE = "peer.all_reduce(x, x, op=pccl.ReduceOp.SUM)"

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals to single processes")


class Child:
    """A Python process whose output is read line by line, with a limit."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *arguments], stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()

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


def start_master() -> tuple[Child, str]:
    child = Child("-m", "pccl.master", "--listen-address=127.0.0.1:0")
    return child, child.line().removeprefix("listening at ")


@pytest.mark.parametrize(
    "call", [ALL_REDUCE, "peer.update_topology()", "peer.sync_shared_state(state)"]
)
def test_the_first_ctrl_c_ends_the_call_for_all_with_the_verdict(call: str) -> None:
    master, address = start_master()
    with master, Child("-c", WAITS.replace("CALL", call), address) as child:
        peer = pccl.Communicator(address)
        peer.connect(timeout=30)
        gather(peer, 2)
        assert child.line() == "waits"
        child.process.send_signal(signal.SIGINT)
        line = child.line()
        assert line.startswith("interrupted") and "user cancelled" in line
        assert child.process.wait(20) == 0
        peer.leave()


def test_a_second_ctrl_c_returns_at_once_though_the_master_hangs() -> None:
    master, address = start_master()
    with master, Child("-c", WAITS.replace("CALL", ALL_REDUCE), address) as child:
        peer = pccl.Communicator(address)
        peer.connect(timeout=30)
        gather(peer, 2)
        assert child.line() == "waits"
        master.process.send_signal(signal.SIGSTOP)
        begin = time.monotonic()
        line = child.line(meanwhile=lambda: child.process.send_signal(signal.SIGINT))
        assert line.startswith("interrupted") and "abandon" in line.lower()
        assert time.monotonic() - begin < 10
        master.process.send_signal(signal.SIGCONT)
        peer.leave()


def test_the_master_program_stops_at_sigterm() -> None:
    master, address = start_master()
    with master:
        peer = pccl.Communicator(address)
        peer.connect(timeout=30)
        master.process.send_signal(signal.SIGTERM)
        assert master.process.wait(20) == 0
        peer.leave()
