"""Elects the active provisioner among replicas, by a lease in shared storage.

Each replica uses only its own clock: it counts from when it saw the holder renew. After `LEASE_S`
without a renewal another replica takes over. Each holder has a higher epoch than the one before.
Source: `leaderelection` of Kubernetes' client-go.
"""

import fcntl
import json
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from foretell.services.process.folders import write_whole

logger = logging.getLogger(__name__)

LEASE_S = 15.0
"""Time without a renewal after which a holder counts as hung."""
VALID_S = LEASE_S * 2 / 3
"""A holder that has not renewed for this long stops writing, well before another takes over."""


class LeaseLost(Exception):
    """Another replica is, or may be, the active one."""


def boot_s() -> float:
    """Monotonic time that also advances while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class Held:
    """The state of a lease when it was read."""

    holder: str
    """Empty: it was released."""
    epoch: int
    version: Any
    """Differs after each change."""


class ProvisionerLease(ABC):
    """This replica's view of the lease. Methods block: never call them on the event loop."""

    shares_folder = False
    """Whether all replicas have the same folder."""

    def __init__(
        self,
        holder: str,
        failures: tuple[type[Exception], ...],
        clock: Callable[[], float],
    ) -> None:
        """`failures`: the exceptions raised when the lease cannot be read or written."""
        self.epoch = 0
        """The epoch of this replica; 0 while it does not hold the lease."""
        self._holder = holder
        self._failures = failures
        self._clock = clock
        self._renewed_s = 0.0
        self._seen: Held | None = None
        self._seen_s = 0.0

    def take(self) -> bool:
        """Acquire or renew the lease; return whether this replica is the active one."""
        try:
            return self._take()
        except self._failures as error:
            logger.warning("the lease cannot be read or renewed: %s", error or repr(error))
            return self._is_valid()

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """A block of at most `LEASE_S - VALID_S` ends before another replica becomes active.

        Raises LeaseLost before the block if another replica may be active.
        """
        if not self._is_valid():
            self.epoch = 0
            raise LeaseLost
        yield

    def release(self) -> None:
        """Let another replica take over at once; if this fails, it does after `LEASE_S`."""
        epoch, self.epoch = self.epoch, 0
        if not epoch:
            return
        try:
            held = self._read()
            if held.holder == self._holder:
                self._write(held, "", held.epoch)
        except self._failures as error:
            logger.warning("the lease cannot be given back: %s", error or repr(error))

    def _is_valid(self) -> bool:
        return bool(self.epoch) and self._clock() - self._renewed_s <= VALID_S

    def _take(self) -> bool:
        now_s = self._clock()
        held = self._read()
        if held != self._seen:
            self._seen, self._seen_s = held, now_s
        mine = bool(self.epoch) and (held.holder, held.epoch) == (self._holder, self.epoch)
        if not mine:
            self.epoch = 0
            if not self._is_free(held) and now_s - self._seen_s <= LEASE_S:
                return False
        epoch = held.epoch if mine else held.epoch + 1
        if not self._write(held, self._holder, epoch):
            return False
        # Valid from before the write: other replicas count from a later time.
        self.epoch, self._renewed_s = epoch, now_s
        return True

    def _is_free(self, held: Held) -> bool:
        """Whether the lease may be taken at once: it was released, or was this replica's before."""
        return held.holder in ("", self._holder)

    @abstractmethod
    def _read(self) -> Held:
        """Read the lease."""

    @abstractmethod
    def _write(self, held: Held, holder: str, epoch: int) -> bool:
        """Write holder and epoch if the lease still equals `held`; return whether it did."""


class FileLease(ProvisionerLease):
    """A lease in a folder, for replicas on one host.

    Its holder has locked a file of its own, which the kernel unlocks when the holder dies: another
    replica then takes over at once. Methods block for milliseconds.
    """

    shares_folder = True

    def __init__(
        self, folder: Path, holder: str, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(holder, (), clock)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder
        self._path = folder / "lease.json"
        self._holder_lock: IO[str] | None = None

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """No other replica can become active during the block, however long it takes."""
        with self._locked():
            if not self.epoch or self._read().epoch != self.epoch:
                self.epoch = 0
                raise LeaseLost
            yield

    def _is_free(self, held: Held) -> bool:
        if not held.holder:
            return True
        try:
            with self._holder_lock_path(held.epoch).open("r", encoding="utf-8") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            return True
        except BlockingIOError:
            return False
        return True

    def _read(self) -> Held:
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))
            return Held(found["holder"], int(found["epoch"]), int(found["renewals"]))
        except FileNotFoundError:
            return Held("", 0, 0)

    def _write(self, held: Held, holder: str, epoch: int) -> bool:
        with self._locked():
            if self._read() != held:
                return False
            if epoch != held.epoch:
                self._lock_as_holder(epoch)
                self._holder_lock_path(held.epoch).unlink(missing_ok=True)
            lease = {"epoch": epoch, "holder": holder, "renewals": held.version + 1}
            write_whole(self._path, json.dumps(lease))
            return True

    def _lock_as_holder(self, epoch: int) -> None:
        if self._holder_lock is not None:
            self._holder_lock.close()
        self._holder_lock = self._holder_lock_path(epoch).open("w", encoding="utf-8")
        fcntl.flock(self._holder_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def release(self) -> None:
        super().release()
        if self._holder_lock is not None:
            self._holder_lock.close()

    def _holder_lock_path(self, epoch: int) -> Path:
        return self._folder / f"holder-{epoch}.lock"

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self._folder / "lease.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
