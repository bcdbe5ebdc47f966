"""Ctrl-C: the first asks for an abort, the second returns at once. In processes of their own."""

from __future__ import annotations

import os
import signal
import time

import pccl
import pytest
from child import Child, start_master
from group import gather

# Says "waits" when the main thread has come to rest in the call. A shell that runs tests in the
# background has its children ignore the signal of Ctrl-C.
WAITS = """
import signal, sys, threading, time, numpy, pccl
signal.signal(signal.SIGINT, signal.default_int_handler)
peer = pccl.Communicator(sys.argv[1])
peer.connect()
while peer.get_attribute(pccl.Attribute.GLOBAL_WORLD_SIZE) < 2:
    if peer.are_peers_pending():
        peer.update_topology()
x = numpy.arange(1000.0)
y = numpy.arange(1000.0)
state = pccl.SharedState([pccl.TensorInfo.from_numpy(x, "x")])
what = [
    pccl.ReduceOpDescriptor.from_numpy(t, t, pccl.ReduceDescriptor(
        1000, pccl.ReduceOp.SUM, tag, pccl.ReduceOperandDescriptor(pccl.DataType.DOUBLE)))
    for tag, t in enumerate([x, y])
]
def watch(main):
    still, last = 0, None
    while still < 5:
        frame = sys._current_frames()[main]
        here = (frame.f_code, frame.f_lasti)
        inside = "pccl" in frame.f_code.co_filename
        still, last = (still + 1 if inside and here == last else 0), here
        time.sleep(0.01)
    print("waits", flush=True)
threading.Thread(target=watch, args=(threading.get_ident(),)).start()
try:
    CALL
except KeyboardInterrupt as interrupt:
    assert (x == numpy.arange(1000.0)).all()
    print("interrupted", repr(interrupt.__cause__), peer.member_id is not None, flush=True)
"""


ALL_REDUCE = "peer.all_reduce(x, x, op=pccl.ReduceOp.SUM)"
CALLS = [
    ALL_REDUCE,
    "peer.all_reduce_async(x, x, op=pccl.ReduceOp.SUM).wait()",
    "peer.all_reduce_multiple_with_retry(what)",
    "peer.update_topology()",
    "peer.are_peers_pending()",
    "peer.optimize_topology()",
    "peer.sync_shared_state(state)",
]

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals to single processes")


@pytest.mark.parametrize("call", CALLS)
def test_the_first_ctrl_c_ends_the_call_for_all_with_the_verdict(call: str) -> None:
    master, address = start_master()
    with master, Child("-c", WAITS.replace("CALL", call), address) as child:
        peer = pccl.Communicator(address)
        peer.connect(timeout=30)
        gather(peer, 2)
        assert child.line() == "waits"
        begin = time.monotonic()
        child.process.send_signal(signal.SIGINT)
        line = child.line()
        assert time.monotonic() - begin < 1.0
        assert line.startswith("interrupted") and "user cancelled" in line
        assert line.endswith(" True"), "it is a member still"
        assert child.process.wait(20) == 0
        peer.leave()


@pytest.mark.parametrize("call", CALLS)
def test_a_second_ctrl_c_returns_at_once_though_the_master_hangs(call: str) -> None:
    master, address = start_master()
    with master, Child("-c", WAITS.replace("CALL", call), address) as child:
        peer = pccl.Communicator(address)
        peer.connect(timeout=30)
        gather(peer, 2)
        assert child.line() == "waits"
        master.process.send_signal(signal.SIGSTOP)
        begin = time.monotonic()
        child.process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        assert child.process.poll() is None, "the first one waits for the verdict"
        line = child.line(meanwhile=lambda: child.process.send_signal(signal.SIGINT))
        assert time.monotonic() - begin < 2
        assert line.startswith("interrupted") and "abandoned; this peer has left the run" in line
        assert line.endswith(" False"), "it is no member any more"
        master.process.send_signal(signal.SIGCONT)
        peer.leave()


JOINS = WAITS.replace(
    """while peer.get_attribute(pccl.Attribute.GLOBAL_WORLD_SIZE) < 2:
    if peer.are_peers_pending():
        peer.update_topology()
""",
    "",
).replace("peer.connect()\n", "")


# Waits for one more Ctrl-C.
NEXT_ONE = """
def next_one():
    try:
        print("again", flush=True)
        time.sleep(30)
    except KeyboardInterrupt:
        return
    raise AssertionError
"""


def test_a_newcomer_that_nobody_admits_can_be_interrupted() -> None:
    master, address = start_master()
    with master:
        peer = pccl.Communicator(address)
        peer.connect(timeout=30)
        with Child("-c", JOINS.replace("CALL", "peer.connect()"), address) as child:
            assert child.line() == "waits"
            begin = time.monotonic()
            child.process.send_signal(signal.SIGINT)
            line = child.line()
            assert time.monotonic() - begin < 1.0
            assert line.startswith("interrupted PCCLError") and line.endswith(" False")
            assert child.process.wait(20) == 0
        assert not peer.are_peers_pending(timeout=30)
        peer.leave()


@pytest.mark.parametrize("hangs", ["from the start", "when it knows of the newcomer"])
@pytest.mark.parametrize("times", [1, 2])
def test_who_has_not_joined_waits_for_no_verdict(hangs: str, times: int) -> None:
    # Where nothing has been agreed on, nobody else has to be asked: the first Ctrl-C does what in
    # other calls takes a second, and a second is one for the program, as any after the call.
    master, address = start_master()
    script = JOINS.replace("CALL", "peer.connect()").replace(
        'print("interrupted"', 'for _ in range(TIMES - 1): next_one()\n    print("interrupted"'
    )
    script = f"TIMES = {times}\n{NEXT_ONE}{script}"
    with master:
        peer = pccl.Communicator(address)
        peer.connect(timeout=30)
        if hangs == "from the start":
            master.process.send_signal(signal.SIGSTOP)
        with Child("-c", script, address) as child:
            assert child.line() == "waits"
            master.process.send_signal(signal.SIGSTOP)
            begin = time.monotonic()
            child.process.send_signal(signal.SIGINT)
            if times == 2:
                assert child.line() == "again"
                child.process.send_signal(signal.SIGINT)
            line = child.line()
            assert time.monotonic() - begin < 1.0
            assert line.startswith("interrupted PCCLError") and line.endswith(" False")
            assert child.process.wait(20) == 0
        master.process.send_signal(signal.SIGCONT)
        assert not peer.are_peers_pending(timeout=30)
        peer.leave()
