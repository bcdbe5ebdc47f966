"""Prints the run as it goes, checks what it must show, and draws it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from children import Message

ALONE_AT_MOST = 0.60
ACCURACY_AT_LEAST = 0.95


class Report:
    """What has been said about the run, and what is wrong with it.

    Args:
        peers: how many there are at first, and at the end.
        rounds: how many there must be.
    """

    def __init__(self, peers: int, rounds: int) -> None:
        self._begin = time.time()
        self._peers = peers
        self._rounds = rounds
        self._problems: list[str] = []
        self._index_of: dict[int, int] = {}
        self._rounds_said: dict[int, dict[int, Message]] = {}
        self._printed: set[int] = set()
        self._finished: dict[int, Message] = {}
        self._lives: dict[int, list[float]] = {}
        self._marks: list[tuple[float, str]] = []
        self._died_in: int | None = None
        self._victim: int | None = None
        self._fetched: set[int] = set()
        self._sent = 0

    def line(self, text: str, when: float | None = None) -> None:
        """One line of output, with the seconds since the start."""
        seconds = (time.time() if when is None else when) - self._begin
        print(f"{seconds:6.2f} s  {text}", flush=True)

    def problem(self, text: str) -> None:
        """Something that makes the run fail."""
        self._problems.append(text)
        self.line(f"PROBLEM: {text}")

    def note(self, index: int, message: Message) -> None:
        """What a peer has said, or that it has ended."""
        getattr(self, f"_note_{message['what']}")(index, message)

    def conclude(self) -> int:
        """The last lines; the exit status."""
        if sorted(self._printed) != list(range(1, self._rounds + 1)):
            self.problem(f"only {len(self._printed)} of {self._rounds} rounds were completed")
        if self._victim is None:
            self.problem("no peer was killed in the middle of an all-reduce")
        elif not self._one_outcome():
            self.problem("the killed peer's all-reduce did not come to the same at all survivors")
        if not self._fetched - set(range(self._peers)):
            self.problem("no newcomer fetched the state")
        digests = {said["digest"] for said in self._finished.values()}
        if len(self._finished) != self._peers or len(digests) != 1:
            self.problem(f"{len(self._finished)} peers finished, with the states {sorted(digests)}")
        else:
            self.line(
                f"all {len(self._finished)} survivors hold the same bits: state {digests.pop()}"
            )
        reached = min((said["accuracy"] for said in self._finished.values()), default=0.0)
        if reached < ACCURACY_AT_LEAST:
            self.problem(f"{reached:.1%} is less than {ACCURACY_AT_LEAST:.0%}")
        self.line(
            f"test accuracy {reached:.1%} (must be {ACCURACY_AT_LEAST:.0%} or more), "
            f"{self._sent / 1e6:.1f} MB sent for averages"
        )
        self.line("FAILED: " + "; ".join(self._problems) if self._problems else "OK")
        return 1 if self._problems else 0

    def draw(self, path: Path) -> None:
        """Loss, accuracy and membership over time."""
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot as plot

        figure, (above, below) = plot.subplots(
            2, 1, sharex=True, figsize=(9, 6), height_ratios=(3, 1), layout="constrained"
        )
        points = [self._summary(number) for number in sorted(self._printed)]
        times = [point["t"] - self._begin for point in points]
        above.plot(times, [point["loss"] for point in points], ".-", label="local loss")
        above.set_yscale("log")
        above.set_ylabel("local loss")
        right = above.twinx()
        accuracy = [100 * point["accuracy"] for point in points]
        right.plot(times, accuracy, ".-", color="tab:green", label="test accuracy")
        right.set_ylabel("test accuracy / %")
        above.legend(handles=[*above.lines, *right.lines], loc="center right")
        above.set_title("four peers, five of ten digits each: one is killed, another joins")
        end = max([time.time(), *(life[-1] for life in self._lives.values())]) - self._begin
        for index, life in sorted(self._lives.items()):
            born = life[0] - self._begin
            died = life[1] - self._begin if len(life) > 1 else end
            color = "tab:red" if index == self._victim else "tab:blue"
            below.barh(index, died - born, left=born, color=color, height=0.6)
        for when, text in self._marks:
            for axis in (above, below):
                axis.axvline(when - self._begin, color="gray", linestyle=":", linewidth=1)
            below.annotate(text, (when - self._begin, -0.9), fontsize=8, annotation_clip=False)
        below.set_yticks(sorted(self._lives), [f"peer {index}" for index in sorted(self._lives)])
        below.set_xlabel("seconds")
        below.invert_yaxis()
        figure.savefig(path, dpi=120)
        plot.close(figure)
        self.line(f"drawn: {path}")

    def _note_alone(self, index: int, said: Message) -> None:
        digits = " ".join(map(str, said["digits"]))
        self.line(
            f"peer {index} sees {digits}; without the others it recognises {said['accuracy']:.1%}"
        )
        if said["accuracy"] > ALONE_AT_MOST:
            self.problem(f"peer {index} does not need the others")

    def _note_joined(self, index: int, said: Message) -> None:
        self._index_of[said["member"]] = index
        self._lives[index] = [said["t"]]
        members = len(said["members"])
        self.line(f"peer {index} joins as m{said['member']}: {members} members", said["t"])
        if index >= self._peers:
            self._marks.append((said["t"], f"peer {index} joins"))

    def _note_fetched(self, index: int, said: Message) -> None:
        self._fetched.add(index)
        kilobytes = said["bytes"] / 1e3
        self.line(f"peer {index} fetches {kilobytes:.0f} kB of state, up to round {said['round']}")

    def _note_dies(self, index: int, said: Message) -> None:
        self._victim, self._died_in = index, said["round"]
        self._marks.append((said["t"], f"peer {index} killed"))
        self.line(
            f"peer {index} kills itself (SIGKILL): it has sent the first segment of round "
            f"{said['round']}'s all-reduce and has no verdict",
            said["t"],
        )

    def _note_round(self, index: int, said: Message) -> None:
        number = said["round"]
        self._sent += said["sent"]
        all_said = self._rounds_said.setdefault(number, {})
        all_said[index] = said
        # Who was killed in it cannot tell of it, though the others may have had all of its data.
        killed = number == self._died_in and not said["failures"]
        if len(all_said) < said["world"] - killed or number in self._printed:
            return
        self._printed.add(number)
        if killed:
            self.line("its data had all arrived: the all-reduce is committed at all survivors")
        failures = sorted({text for other in all_said.values() for text in other["failures"]})
        for text in failures:
            who = [peer for peer, other in sorted(all_said.items()) if text in other["failures"]]
            self.line(f"peers {who} try again: {text}")
        summary = self._summary(number)
        digests = {other["digest"] for other in all_said.values()}
        if len(digests) != 1:
            self.problem(f"round {number}: the members hold different bits: {digests}")
        self.line(
            f"round {number:2d}: peers {' '.join(map(str, sorted(all_said)))}  "
            f"loss {summary['loss']:.3f}  test {summary['accuracy']:.1%}  "
            f"{summary['sent'] / 1e3:.0f} kB each  {1e3 * summary['seconds']:.0f} ms  "
            f"state {said['digest']} at all {len(all_said)}"
        )

    def _note_finished(self, index: int, said: Message) -> None:
        self._finished[index] = said

    def _note_ended(self, index: int, said: Message) -> None:
        if index in self._lives:
            self._lives[index].append(said["t"])
        if said["killed"]:
            self.line(f"peer {index} is dead", said["t"])
        elif index in self._finished and said["status"] == 0:
            self.line(f"peer {index} leaves", said["t"])
        else:
            self.problem(f"peer {index} ended with status {said['status']}")

    def _summary(self, number: int) -> dict[str, Any]:
        said = list(self._rounds_said[number].values())
        return {
            "t": max(message["t"] for message in said),
            "loss": sum(message["loss"] for message in said) / len(said),
            "accuracy": min(message["accuracy"] for message in said),
            "sent": max(message["sent"] for message in said),
            "seconds": max(message["seconds"] for message in said),
        }

    def _one_outcome(self) -> bool:
        """Whether the all-reduce in which a peer was killed came to the same at all others: it
        failed, or was committed, since all of the dead peer's data had arrived."""
        said = self._rounds_said.get(self._died_in or 0, {})
        outcomes = {bool(message["failures"]) for message in said.values()}
        return len(said) == self._peers - 1 and len(outcomes) == 1
