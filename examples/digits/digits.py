"""The digits job: a master and four peers train a classifier of handwritten digits. Each peer sees
five of the ten digits. One is killed in the middle of an all-reduce, another joins later.

Prints what happens as it happens, and ends with exit status 0 only if

- no peer on its own recognises more than 60 % of the test images,
- a peer was killed when it had sent the first segment of an all-reduce and had no verdict, and the
  all-reduce came to the same at all survivors: it failed and was tried again by them (or, if
  all of the dead peer's data had arrived, was committed),
- its successor fetched the state and took part,
- all members held the same bits after every round,
- at least 95 % of the test images are recognised at the end.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import model
from children import Children, Late
from report import Report

PEERS = 4
ROUNDS = 30
VICTIM = 2
DIE_IN_ROUND = 8
WAIT_IN_ROUND = 16
"""By the end of this round the newcomer must be there: the members wait for it."""
SEGMENT_BYTES = (262144, 65536, 4096, 16384, 32768)
"""Bytes per frame of each peer: no two the same. What comes out does not depend on it."""


def main() -> int:
    """Runs the job; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for digits.png")
    parser.add_argument("--limit", type=float, default=90, help="seconds that all may take")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    report = Report(PEERS, ROUNDS)
    with tempfile.TemporaryDirectory() as folder, Children(options.limit) as children:
        try:
            run(children, report, Path(folder))
        except Late as late:
            report.problem(str(late))
        except KeyboardInterrupt:
            report.problem("interrupted")
    report.draw(options.out / "digits.png")
    return report.conclude()


def run(children: Children, report: Report, folder: Path) -> None:
    """Starts everybody and follows what they say until all have ended."""
    report.line("reading the images")
    data = folder / "digits.npz"
    digits = model.Digits.from_sklearn()
    digits.save(data)
    report.line(
        f"{len(digits.train_labels)} images to train with, {len(digits.test_labels)} to test, "
        f"{PEERS} peers with five digits each"
    )
    master = children.start_master()
    report.line(f"master at {master}")

    def start(index: int, *more: str) -> None:
        children.start_worker(
            index,
            f"--master={master}",
            f"--data={data}",
            f"--index={index}",
            f"--shard={VICTIM if index >= PEERS else index}",
            f"--rounds={ROUNDS}",
            f"--gather={PEERS}",
            f"--wait-in-round={WAIT_IN_ROUND}",
            f"--segment-bytes={SEGMENT_BYTES[index]}",
            *more,
        )

    for index in range(PEERS):
        start(index, *([f"--die-in-round={DIE_IN_ROUND}"] if index == VICTIM else []))
    ready = 0
    while children.any_alive():
        said = children.hear()
        if said is None:
            continue
        index, message = said
        report.note(index, message)
        match message["what"]:
            case "alone" if index < PEERS:
                ready += 1
                if ready == PEERS:
                    for peer in range(PEERS):
                        children.tell(peer, "go")
            case "alone":
                children.tell(index, "go")
            case "ended" if index == VICTIM and message["killed"]:
                start(PEERS, "--late")


if __name__ == "__main__":
    begin = time.monotonic()
    status = main()
    print(f"took {time.monotonic() - begin:.1f} s", flush=True)
    sys.exit(status)
