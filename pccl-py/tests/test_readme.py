"""The Python program in the README does what it says, with several peers."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import pccl

README = pathlib.Path(__file__).resolve().parents[2] / "README.md"
PEERS = 3
LIMIT_S = 120


def program(address: str) -> str:
    """The README's program for a master elsewhere; begins when it is told to."""
    found = re.search(
        r"^```python\n(.*?)^```$", README.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    assert found
    text = found[1]
    assert text.count('"127.0.0.1:48148"') == 1
    # So that none is done before another has been loaded.
    begin = "import numpy, pccl, sys; sys.stdin.readline()\n"
    return begin + text.replace("127.0.0.1:48148", address)


def test_program_of_the_readme() -> None:
    master = pccl.MasterNode("127.0.0.1:0")
    master.run()
    command = [sys.executable, "-c", program(master.address)]
    pipe = subprocess.PIPE
    peers = [
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        for _ in range(PEERS)
    ]
    try:
        for peer in peers:
            assert peer.stdin
            peer.stdin.write("\n")
            peer.stdin.flush()
        ends = [peer.communicate(timeout=LIMIT_S) for peer in peers]
    finally:
        for peer in peers:
            peer.kill()
        master.interrupt()
    for peer, (out, err) in zip(peers, ends, strict=True):
        assert peer.returncode == 0, err
        assert re.fullmatch(r"\d+ 1000 \[.*\]\n", out), out
    # All end with the same parameters: those who came last have fetched them.
    assert len({out.split(" ", 1)[1] for out, _ in ends}) == 1, ends
