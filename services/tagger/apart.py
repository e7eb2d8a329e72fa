"""Runs the encoder in a process of its own, which gets only CPU time that no other process wants.

In a thread it would hold the interpreter's lock now and then, and probes of the tagger would wait
for a low-priority thread. In its own process the encoder becomes slow under load, and then the
batcher passes it fewer prompts.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.length.conversation import Conversation

_HUNG_S = 30.0  # for one batch
_RESTART_S = 5.0  # least time between two starts
_START_S = 60.0

Read = tuple[NDArray[np.float64], NDArray[np.float64]]


class EncoderApart:
    """Runs an `encoder.OnnxEncoder`. For one thread at a time; `close` ends the process."""

    def __init__(self, folder: Path, *, threads: int = 1) -> None:
        """ValueError if `folder` holds no model of this version, or if a package is missing."""
        self._command = [sys.executable, "-P", "-m", __name__, str(folder), str(threads)]
        self._process: subprocess.Popen[bytes] | None = None
        self._started_s = 0.0
        self._start()

    @property
    def pid(self) -> int:
        """The id of the process; 0 while there is none."""
        return self._process.pid if self._process else 0

    def read(self, conversations: Sequence[Conversation], models: Sequence[str]) -> Read:
        """See `encoder.OnnxEncoder.read`; raises RuntimeError if the process has died or hangs."""
        if self._process is None:
            if time.monotonic() < self._started_s + _RESTART_S:
                raise RuntimeError("the encoder's process has died; soon there is a new one")
            self._start()
        try:
            self._connection.send((conversations, models))
            found = self._receive(_HUNG_S)
        except (OSError, EOFError) as error:
            self.close()
            raise RuntimeError(f"the encoder's process has died: {error}") from error
        if isinstance(found, str):
            raise RuntimeError(found)
        read: Read = found
        return read

    def kill(self) -> None:
        """Kill the process, from any thread; a caller that waits in `read` gets an error.

        Without this, it could wait for long on a busy machine.
        """
        if (process := self._process) is not None:
            process.kill()

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._connection.close()
            self._process.kill()
            self._process.wait()
            self._process = None

    def _start(self) -> None:
        self._started_s = time.monotonic()
        own, other = socket.socketpair()
        with other:
            number = other.fileno()
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                [*self._command, str(number)], pass_fds=[number]
            )
        self._connection = Connection(own.detach())
        try:
            problem = self._receive(_START_S)
        except (OSError, EOFError) as error:
            problem = f"the encoder's process did not start: {error}"
        if problem:
            self.close()
            raise ValueError(problem)

    def _receive(self, within_s: float) -> Any:
        if not self._connection.poll(within_s):
            raise TimeoutError("no answer")
        return self._connection.recv()


def main(folder: str, threads: str, number: str) -> None:
    """Run the process: answer what comes through the socket `number` until that is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all its processes
    connection: Connection[Any, Any] = Connection(int(number))
    with contextlib.suppress(EOFError, OSError):  # the tagger has ended, perhaps during the start
        _serve(connection, Path(folder), int(threads))


def _serve(connection: "Connection[Any, Any]", folder: Path, threads: int) -> None:
    try:
        from foretell.services.tagger.encoder import OnnxEncoder  # noqa: PLC0415

        encoder = OnnxEncoder(folder, threads=threads)
    except (ImportError, OSError, ValueError) as error:
        connection.send(str(error))
        return
    connection.send("")
    _give_way()
    while True:
        conversations, models = connection.recv()
        try:
            found: Any = encoder.read(conversations, models)
        except Exception as error:  # whatever a model can raise
            found = repr(error)
        connection.send(found)


def _give_way() -> None:
    """Let all threads of this process run only when no other thread wants to."""
    os.nice(19)
    if sys.platform != "linux":
        return
    with contextlib.suppress(PermissionError):  # a container may forbid it
        for thread in Path("/proc/self/task").iterdir():
            os.sched_setscheduler(int(thread.name), os.SCHED_IDLE, os.sched_param(0))


if __name__ == "__main__":
    main(*sys.argv[1:])
