"""One active provisioner among replicas that share a folder on one host.

Who holds the lease has locked a file of its own, which the kernel unlocks when it dies: another one
takes over at once. One that hangs is passed over after `LEASE_S` without a renewal. Each holder has
a higher epoch than the one before, and nothing is written under a lease that was passed on.
"""

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Protocol

LEASE_S = 15.0
"""Time without a renewal after which a holder counts as hung."""


class LeaseLost(Exception):
    """Another replica is the active one."""


class Lease(Protocol):
    """This replica's view of the lease."""

    epoch: int
    shares_folder: bool
    """Whether all replicas have the same folder."""

    def take(self) -> bool: ...
    def guarded(self) -> AbstractContextManager[None]: ...
    def release(self) -> None: ...


class FileLease:
    """A lease in a folder. Methods take milliseconds and may block that long."""

    shares_folder = True

    def __init__(
        self, folder: Path, holder: str, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.epoch = 0
        """That of this replica; 0 while it does not hold the lease."""
        self._folder = folder
        self._holder = holder
        self._clock = clock
        self._path = folder / "lease.json"
        self._witness: IO[str] | None = None
        self._renewals = 0
        self._seen: tuple[int, int] | None = None
        self._seen_s = 0.0

    def take(self) -> bool:
        """Take the lease, or keep it; whether this replica is the active one."""
        with self._locked():
            epoch, renewals = self._read()
            if self.epoch and self.epoch == epoch:
                self._write()
                return True
            self._drop()
            if self._seen != (epoch, renewals):
                self._seen, self._seen_s = (epoch, renewals), self._clock()
            hung = self._clock() - self._seen_s > LEASE_S
            if epoch and not hung and not self._is_dead(epoch):
                return False
            self._become(epoch + 1)
            self._witness_path(epoch).unlink(missing_ok=True)
            return True

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """What is written inside is written while no other replica can become active.

        Raises LeaseLost, before anything is written, if another one is.
        """
        with self._locked():
            if not self.epoch or self._read()[0] != self.epoch:
                self._drop()
                raise LeaseLost
            yield

    def release(self) -> None:
        """Another replica may take over at once."""
        self._drop()

    def _become(self, epoch: int) -> None:
        witness = self._witness_path(epoch).open("w", encoding="utf-8")
        fcntl.flock(witness, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._witness, self.epoch = witness, epoch
        self._write()

    def _drop(self) -> None:
        if self._witness is not None:
            self._witness.close()
        self._witness, self.epoch = None, 0

    def _is_dead(self, epoch: int) -> bool:
        try:
            with self._witness_path(epoch).open("r", encoding="utf-8") as witness:
                fcntl.flock(witness, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            return True
        except BlockingIOError:
            return False
        return True

    def _witness_path(self, epoch: int) -> Path:
        return self._folder / f"holder-{epoch}.lock"

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with (self._folder / "lease.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _read(self) -> tuple[int, int]:
        """The present epoch and how often its holder has renewed it; (0, 0) before the first."""
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))
            return int(found["epoch"]), int(found["renewals"])
        except FileNotFoundError:
            return 0, 0

    def _write(self) -> None:
        self._renewals += 1
        lease = {"epoch": self.epoch, "holder": self._holder, "renewals": self._renewals}
        write_whole(self._path, json.dumps(lease))


def write_whole(path: Path, text: str) -> None:
    """Replace a file: whoever reads it, also after a crash, finds the old text or the new one."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    with partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
