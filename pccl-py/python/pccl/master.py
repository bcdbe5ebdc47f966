"""The master as a program: `python -m pccl.master --listen-address HOST:PORT`."""

from __future__ import annotations

import argparse
import signal
import sys
import threading

from ._errors import PCCLError
from ._master import MasterNode

DEFAULT_ADDRESS = "0.0.0.0:48148"
LOOK_S = 1.0
"""How often to see whether the master has ended by itself."""


def main() -> int:
    """Runs a master until SIGINT or SIGTERM, then stops it in good order."""
    parser = argparse.ArgumentParser(prog="pccl_master", description="Runs the master of a run.")
    parser.add_argument(
        "--listen-address",
        default=DEFAULT_ADDRESS,
        metavar="HOST:PORT",
        help=f"where peers find it; {DEFAULT_ADDRESS} by default",
    )
    arguments = parser.parse_args()
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    master = MasterNode(arguments.listen_address)
    try:
        master.run()
    except PCCLError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"listening at {master.address}", flush=True)
    # With a limit, so that signals are seen on every system.
    while not stop.wait(LOOK_S):
        if not master.is_running():
            return 1
    master.interrupt()
    return 0


if __name__ == "__main__":
    sys.exit(main())
