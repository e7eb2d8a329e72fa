"""The interface of engine drivers, and the execution of their orders in the background."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Protocol

from foretell.services.provisioner.complaints import Complaints
from foretell.services.provisioner.tuning import TUNING

_LIST = "list of instances"  # differs from names of places, which have no spaces


class DriverFailed(Exception):
    """An order was not carried out; the text says why."""


class EngineDriver(Protocol):
    """Engines on some platform, each in a named place that exists already.

    Drivers keep no state: the wanted engines are in the provisioner's file, and the platform tells
    what runs. So when a provisioner is killed at any step, the next one continues from there.
    Calls are idempotent and may be cancelled at any time. Errors are logged, and calls repeated.
    """

    last_first: bool
    """Whether only the last place can be ended, and none starts before those in front of it."""

    async def find(self) -> Mapping[str, bool]:
        """The places where anything runs; True if both engine and predictor do."""
        ...

    async def start(self, name: str) -> None:
        """Start an engine and its predictor, as far as they do not run."""
        ...

    async def end(self, name: str) -> None:
        """End an engine that has no requests any more and its predictor, as far as they run."""
        ...

    async def publish(self, members: str) -> None:
        """Publish the list of instances where schedulers read it, if they do not read the file."""
        ...

    async def close(self) -> None:
        """Close all connections. No other method is called afterwards."""
        ...


class Orders:
    """Reconciles what runs with what is wanted, in the background: no decision waits for a driver.

    Each place has at most one order in progress, so that one that hangs does not delay others.
    """

    def __init__(self, driver: EngineDriver) -> None:
        self.driver = driver
        self._look: asyncio.Task[None] | None = None
        self._wanted: frozenset[str] = frozenset()
        self._underway: dict[str, asyncio.Task[None]] = {}
        self._ending: set[str] = set()
        self._failed = 0
        self._complaints = Complaints()

    def follow(self, wanted: Collection[str], members: str) -> int:
        """Begin missing orders; return how many orders have failed since the previous call.

        Failed orders are repeated at the next call. `members` is the list for schedulers.
        """
        if self._look is None or self._look.done():
            self._wanted = frozenset(wanted)
            self._look = asyncio.create_task(self._begin(self._wanted, members))
        failed, self._failed = self._failed, 0
        return failed

    def is_ending(self, name: str) -> bool:
        """Whether a place may be ended at any moment, even if it is wanted again by now."""
        looks = self._look is not None and not self._look.done()
        return name in self._ending or (looks and name not in self._wanted)

    async def found(self) -> Mapping[str, bool]:
        """Return what the driver finds. Raises OSError if it fails or exceeds `find_s`."""
        try:
            async with asyncio.timeout(TUNING.find_s):
                return await self.driver.find()
        except Exception as error:  # no error of a driver may stop decisions
            raise OSError(f"the driver does not say what runs: {error!r}") from error

    async def close(self) -> None:
        """Cancel all orders. The next provisioner finds what was done and continues from there."""
        tasks = [task for task in (self._look, *self._underway.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.driver.close()

    async def _begin(self, wanted: frozenset[str], members: str) -> None:
        if _LIST not in self._underway:
            self._order(_LIST, lambda _: self.driver.publish(members))
        try:
            found = await self.found()
        except OSError as error:
            self._complain("driver", str(error))
            return
        self._complaints.settle("driver")
        for name in wanted | found.keys():
            if name in self._underway:
                continue
            if name not in wanted:
                self._ending.add(name)
                self._order(name, self.driver.end)
            elif not found.get(name, False):
                self._order(name, self.driver.start)

    def _order(self, name: str, what: Callable[[str], Awaitable[None]]) -> None:
        self._underway[name] = asyncio.create_task(self._carry_out(name, what))

    async def _carry_out(self, name: str, what: Callable[[str], Awaitable[None]]) -> None:
        try:
            async with asyncio.timeout(TUNING.order_s):
                await what(name)
        except TimeoutError:
            self._complain(name, f"nothing came of an order within {TUNING.order_s:.0f} s")
        except DriverFailed as error:
            self._complain(name, str(error))
        except Exception as error:  # as above
            self._complain(name, repr(error))
        else:
            self._complaints.settle(name)
        finally:
            self._underway.pop(name, None)
            self._ending.discard(name)

    def _complain(self, name: str, complaint: str) -> None:
        """Count every failure, also one that is not logged again."""
        self._failed += 1
        self._complaints.add(name, f"{name}: {complaint}")
