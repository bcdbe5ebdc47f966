"""One peer of the digits job: trains on its own digits, averages with the others every few steps.

Says what it does in lines of JSON on standard output; ends when standard input closes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import model
import numpy as np
import pccl

T = TypeVar("T")
KILL = getattr(signal, "SIGKILL", signal.SIGTERM)
TRIES = 10
"""How often a call is tried again when a member is lost in it: more losses than the job has."""
REDUCE_TAG = 7


def say(what: str, **fields: Any) -> None:
    """One line of JSON, in one write, so that lines of threads do not mix."""
    line = json.dumps({"what": what, "t": time.time(), **fields}) + "\n"
    os.write(1, line.encode())


class OwnDeath(threading.Thread):
    """Kills this process, with a signal that it cannot catch, at the moment when the first segment
    of an all-reduce has left and the verdict has not come."""

    def __init__(self, peer: pccl.Communicator) -> None:
        super().__init__(daemon=True)
        self._events = peer.events()
        self.armed_for: int | None = None

    def run(self) -> None:
        """Watches the events. Disarmed as soon as the all-reduce has returned."""
        for event in self._events:
            first = event.kind == "first_segment_sent" and event.fields["tag"] == REDUCE_TAG
            if first and self.armed_for is not None:
                say("dies", round=self.armed_for, event=str(event))
                os.kill(os.getpid(), KILL)


class Worker:
    """A peer with its network, its images, and the state it shares with the others."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.digits = model.Digits.load(options.data)
        self.images, self.labels = self.digits.of_peer(options.shard)
        self.random = np.random.default_rng(options.index)
        self.network = model.Network()
        self.outer = model.OuterStep(self.network.parameters)
        self.round = np.zeros(1, np.int64)
        self.state = pccl.SharedState(
            [
                pccl.TensorInfo.from_numpy(self.outer.anchor, "anchor"),
                pccl.TensorInfo.from_numpy(self.outer.momentum, "momentum"),
                pccl.TensorInfo.from_numpy(self.round, "round"),
            ]
        )
        self.peer = pccl.Communicator(
            options.master, name=f"peer {options.index}", segment_bytes=options.segment_bytes
        )
        self.death = OwnDeath(self.peer) if options.die_in_round else None

    def alone(self) -> float:
        """Accuracy that this peer reaches with as many steps but no others."""
        network = model.Network()
        steps = self.options.rounds * model.LOCAL_STEPS
        network.train(self.images, self.labels, steps, np.random.default_rng(self.options.index))
        return network.accuracy(self.digits.test_images, self.digits.test_labels)

    def run(self) -> None:
        """The whole life of a peer."""
        say("alone", accuracy=self.alone(), digits=model.CLASSES[self.options.shard])
        if not sys.stdin.readline():
            return
        threading.Thread(target=end_with_parent, daemon=True).start()
        self.peer.connect()
        say("joined", member=self.peer.member_id, members=self.peer.members())
        if self.death:
            self.death.start()
        # A newcomer was admitted by the others' update; its first round begins after that.
        admitted_late = self.options.late
        while not self.options.late and self.world() < self.options.gather:
            self.admit()
        while True:
            if not admitted_late:
                self.admit()
            admitted_late = False
            self.synchronise()
            if self.round[0] >= self.options.rounds:
                break
            self.play_round()
        say("finished", digest=self.digest(), accuracy=self.accuracy())
        self.peer.leave()

    def world(self) -> int:
        """Members, as of the last call that returned."""
        return self.peer.get_attribute(pccl.Attribute.GLOBAL_WORLD_SIZE)

    def admit(self) -> None:
        """Lets newcomers in. In the round by which all are expected, waits for the last."""
        waits = self.round[0] == self.options.wait_in_round and self.world() < self.options.gather
        gathers = self.round[0] == 0 and self.world() < self.options.gather
        while not self.peer.are_peers_pending():
            if not (waits or gathers):
                return
            time.sleep(0.02)
        self.peer.update_topology()

    def synchronise(self) -> None:
        """Fetches what the members hold, or shows that it is the same here."""
        self.state.revision = int(self.round[0])
        info = again(lambda: self.peer.sync_shared_state(self.state))
        if info.rx_bytes:
            say("fetched", round=int(self.round[0]), bytes=info.rx_bytes)
        self.network.parameters[:] = self.outer.anchor

    def play_round(self) -> None:
        """Local steps, an average of what they changed, one outer step."""
        begin = time.perf_counter()
        number = int(self.round[0]) + 1
        steps = model.LOCAL_STEPS
        if self.death and number >= self.options.die_in_round:
            # A little ahead of the others, who cannot be done without it.
            steps //= 6
        loss = self.network.train(self.images, self.labels, steps, self.random)
        change = self.outer.anchor - self.network.parameters
        failures: list[str] = []
        info = self.average(change, number, failures)
        self.outer.apply(change)
        self.network.parameters[:] = self.outer.anchor
        self.round[0] = number
        say(
            "round",
            round=number,
            loss=loss,
            accuracy=self.accuracy(),
            digest=self.digest(),
            members=self.peer.members(),
            world=info.local_world_size,
            sent=info.tx_bytes,
            received=info.rx_bytes,
            failures=failures,
            seconds=time.perf_counter() - begin,
        )

    def average(self, change: model.Floats, number: int, failures: list[str]) -> pccl.ReduceInfo:
        """Averages in place. When a member is lost in it, the array is as it was: try again."""
        if self.death and number >= self.options.die_in_round:
            self.death.armed_for = number
        try:
            return again(
                lambda: self.peer.all_reduce(change, change, op=pccl.ReduceOp.AVG, tag=REDUCE_TAG),
                failures,
            )
        finally:
            if self.death:
                self.death.armed_for = None

    def accuracy(self) -> float:
        """On the test images, all ten digits."""
        return self.network.accuracy(self.digits.test_images, self.digits.test_labels)

    def digest(self) -> str:
        """Stands for all bits of the shared state."""
        hashed = hashlib.sha256()
        for tensor in self.state.tensors:
            hashed.update(np.asarray(tensor.tensor).tobytes())
        return hashed.hexdigest()[:16]


def again(call: Callable[[], T], failures: list[str] | None = None) -> T:
    """Calls until it does not fail for the loss of a member."""
    for _ in range(TRIES - 1):
        try:
            return call()
        except pccl.PCCLError as error:
            if not error.retryable:
                raise
            if failures is not None:
                failures.append(str(error))
    return call()


def end_with_parent() -> None:
    """Ends this process when the parent is gone: its end of standard input closes."""
    while sys.stdin.readline():
        pass
    os._exit(3)


def main() -> None:
    """Parses the options and runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--master", required=True)
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--index", required=True, type=int)
    parser.add_argument("--shard", required=True, type=int)
    parser.add_argument("--rounds", required=True, type=int)
    parser.add_argument("--gather", required=True, type=int, help="members to wait for")
    parser.add_argument("--wait-in-round", required=True, type=int)
    parser.add_argument("--segment-bytes", required=True, type=int)
    parser.add_argument("--die-in-round", type=int)
    parser.add_argument("--late", action="store_true")
    options = parser.parse_args()
    worker = Worker(options)
    worker.run()


if __name__ == "__main__":
    main()
