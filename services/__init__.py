"""Thin shells around the library: processes, sockets, clocks. Services never import each other."""

import os
import signal
import sys


def end_at_once(*_: object) -> None:
    """Handle a signal while a process starts: nothing is in progress that could be finished."""
    os._exit(0)


# `python -m services.NAME` imports this before anything else, and sys.argv says so. As the first
# process of a container it would not get a signal at all for which it has no handler, and what it
# imports takes seconds on a busy host.
if sys.argv[:1] == ["-m"]:
    signal.signal(signal.SIGTERM, end_at_once)
