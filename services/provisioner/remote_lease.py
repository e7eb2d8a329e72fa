"""A lease that is kept on another host, which may be away or slow.

Each replica goes by its own clock: it counts from when it has seen the holder renew. Who could not
renew for `VALID_S` writes nothing any more, well before another one takes over at `LEASE_S`.
Source: `leaderelection` of Kubernetes' client-go.
"""

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from foretell.services.provisioner.lease import LEASE_S, LeaseLost

logger = logging.getLogger(__name__)

VALID_S = LEASE_S * 2 / 3


def boot_s() -> float:
    """Time that goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class Held:
    """A lease as it was read."""

    holder: str
    """Empty: it was given back."""
    epoch: int
    version: object
    """Another one after each change."""


class RemoteLease(ABC):
    """This replica's view of the lease. Not for the thread of the event loop."""

    shares_folder = False

    def __init__(
        self,
        holder: str,
        failures: tuple[type[Exception], ...],
        clock: Callable[[], float],
    ) -> None:
        """`failures`: what is raised where the lease cannot be read or written."""
        self.epoch = 0
        """That of this replica; 0 while it does not hold the lease."""
        self._holder = holder
        self._failures = failures
        self._clock = clock
        self._renewed_s = 0.0
        self._seen: Held | None = None
        self._seen_s = 0.0

    def take(self) -> bool:
        """Take the lease, or keep it; whether this replica is the active one."""
        try:
            return self._take()
        except self._failures as error:
            logger.warning("the lease cannot be read or renewed: %s", error or repr(error))
            return self._is_valid()

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """What is written inside is written before another replica becomes active.

        Raises LeaseLost, before anything is written, if one may be.
        """
        if not self._is_valid():
            self.epoch = 0
            raise LeaseLost
        yield

    def release(self) -> None:
        """Another replica may take over at once; after `LEASE_S` if this cannot be told."""
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
            if held.holder not in ("", self._holder) and now_s - self._seen_s <= LEASE_S:
                return False
        epoch = held.epoch if mine else held.epoch + 1
        if not self._write(held, self._holder, epoch):
            return False
        # From before it was asked for: others count from later.
        self.epoch, self._renewed_s = epoch, now_s
        return True

    @abstractmethod
    def _read(self) -> Held:
        """The lease as it is."""

    @abstractmethod
    def _write(self, held: Held, holder: str, epoch: int) -> bool:
        """Renew it, or pass it on; whether nobody else was faster and it still was as `held`."""
