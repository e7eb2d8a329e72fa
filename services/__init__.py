"""Thin shells around the library: processes, sockets, clocks. Services never import each other."""

import gc
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
    # Neither imports nor requests make cycles, so collecting finds nothing; at the default of 700
    # objects it took a tenth of a start's time, and of a request's. An exception's traceback may be
    # one: it waits a little longer.
    gc.set_threshold(20_000)
