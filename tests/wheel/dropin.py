"""Programs in the style of PCCL 1.0, run by its own Python code on our library.

`dropin.py` runs everything; `dropin.py PEER ADDRESS STEPS` is one peer of it.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pccl

ELEMENTS = 1024
OPS = 8


PLAIN = pccl.QuantizationOptions(pccl.DataType.FLOAT, pccl.QuantizationAlgorithm.NONE)
FORMS = [
    pccl.QuantizationOptions(to, by)
    for by in (pccl.QuantizationAlgorithm.MIN_MAX, pccl.QuantizationAlgorithm.ZERO_POINT_SCALE)
    for to in (pccl.DataType.UINT8, pccl.DataType.INT8, pccl.DataType.UINT16)
]
ALL_FORMS = [*FORMS, PLAIN]


def moved(quantization: pccl.QuantizationOptions) -> int:
    """Bytes that one of two peers sends: floats, or codes in blocks of 256 behind two floats."""
    if quantization is PLAIN:
        return ELEMENTS * 4
    width = 2 if quantization.quantized_datatype == pccl.DataType.UINT16 else 1
    return ELEMENTS * width + ELEMENTS // 256 * 8


def operand(
    tag: int, op: pccl.ReduceOp, quantization: pccl.QuantizationOptions
) -> pccl.ReduceDescriptor:
    return pccl.ReduceDescriptor(
        count=ELEMENTS,
        op=op,
        tag=tag,
        operand_descriptor=pccl.ReduceOperandDescriptor(pccl.DataType.FLOAT),
        quantization_options=quantization,
    )


def world(peer: pccl.Communicator) -> int:
    return peer.get_attribute(pccl.Attribute.GLOBAL_WORLD_SIZE)


def connected(address: str) -> pccl.Communicator:
    peer = pccl.Communicator(address, 0)
    peer.connect(n_attempts=15)
    return peer


def finish(parameters: np.ndarray) -> None:
    print("end", parameters.tobytes().hex()[:32], flush=True)


def stepwise(address: str, steps: int) -> None:
    """Query, update, optimise, synchronise, reduce until it succeeds: its end-to-end test, with
    gradients that travel quantised."""
    random = np.random.default_rng()
    peer = connected(address)
    parameters = np.zeros(ELEMENTS, np.float32)
    step = np.zeros(1, np.int64)
    state = pccl.SharedState(
        [
            pccl.TensorInfo.from_numpy(parameters, "parameters", allow_content_inequality=False),
            pccl.TensorInfo.from_numpy(step, "step", allow_content_inequality=False),
        ]
    )
    changed = True
    while step[0] < steps:
        if not changed and peer.are_peers_pending():
            peer.update_topology()
            changed = True
        if world(peer) < 2:
            peer.update_topology()
            changed = True
            time.sleep(0.01)
            continue
        if changed:
            peer.optimize_topology()
            peer.sync_shared_state(state)
            state.push_revision()
            changed = False
            continue
        own = random.uniform(-1, 1, ELEMENTS).astype(np.float32)
        own[:256] = step[0]
        change = own.copy()
        quantization = FORMS[int(step[0]) % len(FORMS)]
        while world(peer) > 1:
            handle = peer.all_reduce_async(
                change, change, op=pccl.ReduceOp.AVG, quantization_options=quantization
            )
            succeeded, _, info = handle.wait()
            if succeeded:
                break
            assert (change == own).all(), "the buffer of a failed operation was not restored"
        else:
            continue
        # A block of equal values is exact.
        assert (change[:256] == step[0]).all(), (change[0], step[0])
        assert np.abs(change[256:]).max() < 1.01
        if info.local_world_size == 2:
            assert info.tx_bytes == moved(quantization), (info.tx_bytes, quantization)
        parameters += change
        step += 1
        if step[0] % 10 == 0:
            print("step", step[0], info.local_world_size, flush=True)
    finish(parameters)


def delayed(address: str, steps: int) -> None:
    """Collectives on a thread, the query for newcomers on the main one: delayed outer steps."""
    peer = connected(address)
    while world(peer) < 2:
        peer.update_topology()
    parameters = np.zeros(ELEMENTS, np.float32)
    changes = [np.zeros(ELEMENTS, np.float32) for _ in range(OPS)]

    def reduce() -> None:
        descriptors = [
            pccl.ReduceOpDescriptor.from_numpy(
                c, c, operand(tag, pccl.ReduceOp.AVG, ALL_FORMS[tag % len(ALL_FORMS)])
            )
            for tag, c in enumerate(changes)
        ]
        info = peer.all_reduce_multiple_with_retry(descriptors, max_in_flight=4)
        assert info.local_world_size == 2
        expected = sum(moved(ALL_FORMS[tag % len(ALL_FORMS)]) for tag in range(OPS))
        assert info.tx_bytes == expected, (info.tx_bytes, expected)

    for number in range(steps):
        for change in changes:
            change[:] = number
        thread = threading.Thread(target=reduce)
        thread.start()
        for _ in range(5):
            assert not peer.are_peers_pending()
        thread.join()
        for change in changes:
            parameters += change
    finish(parameters)


PEERS = {"stepwise": stepwise, "delayed": delayed}


class Peer:
    """A peer in a process of its own."""

    def __init__(self, kind: str, address: str, steps: int) -> None:
        command = [sys.executable, __file__, kind, address, str(steps)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def wait_for(self, text: str) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(text):
                return line
        raise AssertionError(f"a peer ended without {text!r}: {self.process.wait()}")

    def end(self) -> str:
        line = self.wait_for("end")
        assert self.process.wait() == 0
        return line


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def same_end(peers: list[Peer]) -> None:
    ends = {peer.end() for peer in peers}
    assert len(ends) == 1, ends


def main() -> None:
    address = f"127.0.0.1:{free_port()}"
    master = pccl.MasterNode(listen_address=address)
    master.run()

    same_end([Peer("stepwise", address, 1000) for _ in range(2)])
    print("1,000 quantised steps of two peers: ok")

    first, second, victim = (Peer("stepwise", address, 1500) for _ in range(3))
    victim.wait_for("step 100 ")
    victim.process.kill()
    victim.process.wait()
    third = Peer("stepwise", address, 1500)
    same_end([first, second, third])
    print("a peer killed, and another that joins: ok")

    same_end([Peer("delayed", address, 50) for _ in range(2)])
    print("collectives on a thread beside the query for newcomers: ok")

    lonely = connected(address)
    try:
        lonely.all_reduce(np.zeros(4, np.float32), np.zeros(4, np.float32), op=pccl.ReduceOp.SUM)
    except pccl.PCCLError as error:
        assert error.result.name == "TOO_FEW_PEERS", error.result
    else:
        raise AssertionError("a lonely peer reduced")
    master.interrupt()
    # In the order that its own tests try: the master first, then the communicator.
    del master
    del lonely
    print("ends in odd order: ok")


if __name__ == "__main__":
    if len(sys.argv) == 4:
        PEERS[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
    else:
        main()
