"""What happens to a process: forks, its end, a lock that is held for long, launchers."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pccl
import pytest
from child import Child, start_master
from group import LIMIT_S, each, failure, gather, master, run_of, together
from pccl import Attribute, ReduceOp, Result

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
posix = pytest.mark.skipif(os.name != "posix", reason="signals to single processes")

# From 3.12 on the interpreter warns of forks beside threads: that is what these tests are about.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def sum_of(peers: list[pccl.Communicator]) -> list[float]:
    def reduce(_: int, peer: pccl.Communicator) -> float:
        x = np.ones(10)
        peer.all_reduce(x, x, op=ReduceOp.SUM, timeout=LIMIT_S)
        return float(x[0])

    return each(peers, reduce)


def report(peer: pccl.Communicator, handle: Any, node: pccl.MasterNode) -> list[str]:
    """What a forked child is told by everything that it could call."""
    x = np.ones(10)
    state = pccl.SharedState([pccl.TensorInfo.from_numpy(x, "x")])
    calls: list[Callable[[], Any]] = [
        lambda: peer.connect(n_attempts=1),
        peer.update_topology,
        peer.are_peers_pending,
        peer.optimize_topology,
        lambda: peer.all_reduce(x, x, op=ReduceOp.SUM),
        lambda: peer.all_reduce_async(x, x, op=ReduceOp.SUM),
        lambda: peer.sync_shared_state(state),
        lambda: peer.get_attribute(Attribute.GLOBAL_WORLD_SIZE),
        peer.members,
        peer.events,
        peer.leave,
        handle.is_done,
        handle.cancel,
        node.status,
        node.interrupt,
    ]
    told = []
    for call in calls:
        error = failure(call)
        good = error.result is Result.INVALID_USAGE and "is a fork" in str(error)
        told.append("clear" if good else f"{call}: {error}")
    committed, status, _ = handle.wait()
    told.append("clear" if (committed, status) == (False, 4) else f"wait: {committed} {status}")
    told.append("clear" if not node.is_running() else "a master runs in the child")
    return told


def child_of_multiprocessing(
    peer: pccl.Communicator, handle: Any, node: pccl.MasterNode, answers: Any
) -> None:
    answers.put(report(peer, handle, node))
    # One of its own is a peer like any other.
    own = pccl.Communicator(os.environ["PCCL_TEST_OTHER_MASTER"])
    own.connect(timeout=LIMIT_S)
    answers.put([str(own.get_attribute(Attribute.GLOBAL_WORLD_SIZE))])
    own.leave()


@forks
def test_a_forked_child_is_told_and_harms_nobody() -> None:
    with master() as node, master() as other, run_of(2) as peers:
        x = np.ones(10)
        handle = peers[0].all_reduce_async(x, x, op=ReduceOp.SUM, tag=9)
        os.environ["PCCL_TEST_OTHER_MASTER"] = other.address
        context = multiprocessing.get_context("fork")
        answers = context.Queue()
        child = context.Process(
            target=child_of_multiprocessing, args=(peers[0], handle, node, answers)
        )
        child.start()
        told = answers.get(timeout=LIMIT_S)
        assert told == ["clear"] * len(told)
        assert answers.get(timeout=LIMIT_S) == ["1"]
        child.join(LIMIT_S)
        assert child.exitcode == 0
        # The parent's operation and membership are as before.
        y = np.ones(10)
        peers[1].all_reduce(y, y, op=ReduceOp.SUM, tag=9)
        assert handle.wait()[0] and (x == 2).all()
        assert sum_of(peers) == [2, 2]
        assert node.is_running()


@forks
def test_a_forked_child_may_come_to_its_end() -> None:
    with run_of(2) as peers:
        x = np.ones(10)
        handle = peers[0].all_reduce_async(x, x, op=ReduceOp.SUM)
        with Child("-c", FORKS, environment={"PYTHONWARNINGS": "ignore"}) as child:
            status, output, errors = child.end()
        assert status == 0, errors
        assert output.split() == ["child", "parent", "2.0"]
        pid = os.fork()
        if pid == 0:
            # Objects die one by one, as at the end of a function, and then the process.
            status = 1
            try:
                del handle, x
                peers.clear()
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        y = np.ones(10)
        peers[1].all_reduce(y, y, op=ReduceOp.SUM)
        assert handle.wait()[0]


# The child ends as an interpreter does, with everything that the parent has.
FORKS = """
import os, sys, threading, numpy, pccl
master = pccl.MasterNode("127.0.0.1:0")
master.run()
peers = [pccl.Communicator(master.address) for _ in range(2)]
peers[0].connect()
joins = threading.Thread(target=peers[1].connect)
joins.start()
while peers[0].get_attribute(pccl.Attribute.GLOBAL_WORLD_SIZE) < 2:
    if peers[0].are_peers_pending():
        peers[0].update_topology()
joins.join()
x, y = numpy.ones(3), numpy.ones(3)
handle = peers[0].all_reduce_async(x, x, op=pccl.ReduceOp.SUM)
waits = threading.Thread(target=handle.wait)
waits.start()
pid = os.fork()
if pid == 0:
    print("child", flush=True)
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
peers[1].all_reduce(y, y, op=pccl.ReduceOp.SUM)
waits.join()
print("parent", x[0], flush=True)
"""


# A member, with something open when the interpreter ends.
ENDS = """
import sys, threading, numpy, pccl
peer = pccl.Communicator(sys.argv[1])
peer.connect()
while peer.get_attribute(pccl.Attribute.GLOBAL_WORLD_SIZE) < 2:
    if peer.are_peers_pending():
        peer.update_topology()
x = numpy.ones(100000)
y = numpy.ones(100000)
state = pccl.SharedState([pccl.TensorInfo.from_numpy(y, "y")])
events = peer.events()
def daemon(call, *arguments, **options):
    threading.Thread(target=call, args=arguments, kwargs=options, daemon=True).start()
HOW
cycle = [peer]
cycle.append(cycle)
print("ends", flush=True)
"""

HOW = {
    "a communicator": "",
    "a handle": "handle = peer.all_reduce_async(x, x, op=pccl.ReduceOp.SUM)",
    "a forgotten handle": "peer.all_reduce_async(x, x, op=pccl.ReduceOp.SUM)",
    "a thread in a collective": "daemon(peer.all_reduce, x, x, op=pccl.ReduceOp.SUM)",
    "a thread in a wait": (
        "handle = peer.all_reduce_async(x, x, op=pccl.ReduceOp.SUM); daemon(handle.wait)"
    ),
    "a thread in a vote": "daemon(peer.update_topology)",
    "a thread in a synchronisation": "daemon(peer.sync_shared_state, state)",
    "a thread in many": (
        "daemon(peer.all_reduce_multiple_with_retry, [pccl.ReduceOpDescriptor.from_numpy(x, x, "
        "pccl.ReduceDescriptor(100000, pccl.ReduceOp.SUM, 1, "
        "pccl.ReduceOperandDescriptor(pccl.DataType.DOUBLE)))])"
    ),
    "a thread that reads events": "daemon(list, events)",
    "an exception": "daemon(peer.update_topology); 1 / 0",
    "sys.exit": "daemon(peer.update_topology); sys.exit(0)",
    "a connect under way": ("other = pccl.Communicator(sys.argv[1]); daemon(other.connect)"),
}


@pytest.mark.parametrize("how", HOW)
def test_an_interpreter_that_ends_with_live_objects_ends_well(how: str) -> None:
    with master() as node, Child("-c", ENDS.replace("HOW", HOW[how]), node.address) as child:
        peer = pccl.Communicator(node.address)
        peer.connect(timeout=LIMIT_S)
        gather(peer, 2)
        begin = time.monotonic()
        status, _, errors = child.end()
        assert time.monotonic() - begin < 5
        lines = [line for line in errors.splitlines() if " WARN pccl" not in line]
        if how == "an exception":
            assert status == 1 and lines[-1].startswith("ZeroDivisionError")
        else:
            assert (status, lines) == (0, [])
        # It left in good order: the other one is alone as soon as it looks.
        error = failure(lambda: peer.all_reduce(np.ones(1), np.ones(1), op=ReduceOp.SUM, tag=77))
        assert error.result in (Result.RANK_CONNECTION_LOST, Result.TOO_FEW_PEERS)
        assert peer.get_attribute(Attribute.GLOBAL_WORLD_SIZE) == 1
        peer.leave()


@pytest.mark.parametrize("repetition", range(10))
def test_threads_whose_calls_end_with_the_interpreter_do_not_crash_it(repetition: int) -> None:
    # Both members are in one process: the waits end while the interpreter does.
    with Child("-c", STORM) as child:
        status, output, errors = child.end()
        lines = [line for line in errors.splitlines() if " WARN pccl" not in line]
        assert (status, lines) == (0, []), output


STORM = """
import threading, numpy, pccl
master = pccl.MasterNode("127.0.0.1:0")
master.run()
peers = [pccl.Communicator(master.address) for _ in range(2)]
peers[0].connect()
joins = threading.Thread(target=peers[1].connect)
joins.start()
while peers[0].get_attribute(pccl.Attribute.GLOBAL_WORLD_SIZE) < 2:
    if peers[0].are_peers_pending():
        peers[0].update_topology()
joins.join()
def work(peer, tag):
    x = numpy.ones(10)
    while True:
        peer.all_reduce(x, x, op=pccl.ReduceOp.MAX, tag=tag)
def quietly(*arguments):
    while True:
        try:
            work(*arguments)
        except pccl.PCCLError:
            pass
for peer in peers:
    for tag in range(8):
        threading.Thread(target=quietly, args=(peer, tag), daemon=True).start()
for _ in range(200):
    for peer in peers:
        peer.members()
"""


HOLDS = """
import ctypes, sys, numpy, pccl
peer = pccl.Communicator(sys.argv[1])
peer.connect()
while peer.get_attribute(pccl.Attribute.GLOBAL_WORLD_SIZE) < 2:
    if peer.are_peers_pending():
        peer.update_topology()
print("holds", peer.member_id, flush=True)
ctypes.PyDLL(None).sleep(ctypes.c_uint(8))
x = numpy.ones(10)
peer.all_reduce(x, x, op=pccl.ReduceOp.SUM)
print(x[0], peer.member_id, flush=True)
"""


@posix
def test_a_member_lives_though_its_interpreter_is_busy() -> None:
    # Eight seconds without the lock, with a peer time-out of one.
    daemon, address = start_master(limit=1.0)
    with daemon, Child("-c", HOLDS, address) as child:
        peer = pccl.Communicator(address)
        peer.connect(timeout=LIMIT_S)
        gather(peer, 2)
        before = child.line().removeprefix("holds ")
        x = np.ones(10)
        info = peer.all_reduce(x, x, op=ReduceOp.SUM, timeout=LIMIT_S)
        assert info.local_world_size == 2
        summed, after = child.line().split()
        assert float(summed) == 2
        assert after == before, "it was never lost, nor had to join again"
        peer.leave()


LAUNCHED = {
    "MASTER_ADDR": "192.0.2.1",
    "MASTER_PORT": "1",
    "RANK": "7",
    "LOCAL_RANK": "3",
    "WORLD_SIZE": "64",
    "LOCAL_WORLD_SIZE": "8",
    "GROUP_RANK": "5",
    "ROLE_RANK": "7",
    "NODE_RANK": "5",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_MAX_RESTARTS": "0",
    "OMP_NUM_THREADS": "1",
    "NCCL_ASYNC_ERROR_HANDLING": "1",
}

IS_LAUNCHED = """
import os, numpy, pccl
before = dict(os.environ)
master = pccl.MasterNode("127.0.0.1:0")
master.run()
peer = pccl.Communicator(master.address)
peer.connect()
print([peer.get_attribute(a) for a in pccl.Attribute], peer.member_id)
peer.leave()
master.interrupt()
assert dict(os.environ) == before
"""


def test_nothing_of_a_launchers_environment_is_taken_for_ours() -> None:
    with (
        Child("-c", IS_LAUNCHED) as plain,
        Child("-c", IS_LAUNCHED, environment=LAUNCHED) as launched,
    ):
        ends = plain.end()[:2], launched.end()[:2]
    assert ends[0] == ends[1]
    assert ends[0][0] == 0 and ends[0][1].startswith("[1, 1, 1, 1]")


SERVES = """
import pccl, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
def main():
    master = pccl.MasterNode(listen_address="127.0.0.1:0")
    master.run()
    print(master.address, flush=True)
main()
END
"""


@posix
def test_a_process_that_only_starts_a_master_serves_until_it_is_stopped() -> None:
    # As sync_master.py of PCCL 1.0 does.
    with Child("-c", SERVES.replace("END", "")) as child:
        address = child.line()
        peers = [pccl.Communicator(address) for _ in range(2)]
        peers[0].connect(timeout=LIMIT_S)
        together([peers[1].connect, lambda: gather(peers[0], 2)])
        assert sum_of(peers) == [2, 2]
        child.process.send_signal(signal.SIGINT)
        status, _, errors = child.end(10)
        assert status == 0, errors
        for peer in peers:
            peer.leave()
    with Child("-c", SERVES.replace("END", "1 / 0")) as child:
        child.line()
        assert child.end(10)[0] == 1


@posix
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_master_program_stops_at_a_signal(number: signal.Signals) -> None:
    program, address = start_master()
    with program:
        peer = pccl.Communicator(address)
        peer.connect(timeout=LIMIT_S)
        program.process.send_signal(number)
        assert program.end(20)[0] == 0
        peer.leave()


def test_the_master_program_says_why_it_cannot_start() -> None:
    with master() as node, Child("-m", "pccl.master", "--listen-address", node.address) as child:
        status, _, errors = child.end()
        assert status == 1 and node.address in errors and "Traceback" not in errors
    with Child("-m", "pccl.master", "--help") as child:
        assert "0.0.0.0:48148" in child.end()[1]


def test_every_wait_lets_other_threads_run() -> None:
    x = np.ones(8)
    state = pccl.SharedState([pccl.TensorInfo.from_numpy(np.ones(3), "x")])
    kind = pccl.ReduceOperandDescriptor(pccl.DataType.DOUBLE)
    what = pccl.ReduceOpDescriptor.from_numpy(x, x, pccl.ReduceDescriptor(8, ReduceOp.SUM, 3, kind))
    calls: dict[str, Callable[[pccl.Communicator], Any]] = {
        "all_reduce": lambda p: p.all_reduce(x, x, op=ReduceOp.SUM),
        "wait": lambda p: p.all_reduce_async(x, x, op=ReduceOp.SUM, tag=1).wait(),
        "many": lambda p: p.all_reduce_multiple_with_retry([what]),
        "update": lambda p: p.update_topology(),
        "pending": lambda p: p.are_peers_pending(),
        "optimize": lambda p: p.optimize_topology(),
        "sync": lambda p: p.sync_shared_state(state),
        "events": lambda p: list(p.events()),
    }
    for name, call in calls.items():
        with run_of(2) as peers:

            def ends(call: Callable[[pccl.Communicator], Any] = call, peers: Any = peers) -> None:
                # With the other member's silence it ends when this one leaves.
                with contextlib.suppress(pccl.PCCLError):
                    call(peers[0])

            thread = threading.Thread(target=ends)
            thread.start()
            while thread.ident not in sys._current_frames():
                assert thread.is_alive()
            count = sum(1 for _ in range(200_000))
            assert count == 200_000 and thread.is_alive(), name
            peers[0].leave()
            thread.join(LIMIT_S)
            assert not thread.is_alive(), name
