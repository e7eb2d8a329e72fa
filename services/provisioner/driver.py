"""What starts and ends engines, and how its orders are carried out in the background."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Protocol

from foretell.services.provisioner.complaints import Complaints
from foretell.services.provisioner.tuning import TUNING

_LIST = "list of instances"  # beside the names of places, which have no spaces


class DriverFailed(Exception):
    """An order was not carried out; the text says why."""


class EngineDriver(Protocol):
    """Engines on some platform, each in a place that has a name and is ready made.

    Drivers keep no state: the wanted engines are in the provisioner's file, and the platform is
    asked what runs. So at whatever step a provisioner is killed, the next one continues from there.
    Calls may be repeated and cancelled at any time. Their errors are logged, and they are repeated.
    """

    last_first: bool
    """Only the last of the places can be ended, and none is started before those in front of it."""

    async def find(self) -> Mapping[str, bool]:
        """The places where anything runs, and whether all that belongs there does."""
        ...

    async def start(self, name: str) -> None:
        """Start what does not run of an engine and its predictor."""
        ...

    async def end(self, name: str) -> None:
        """End what runs of an engine that has no requests any more, and of its predictor."""
        ...

    async def publish(self, members: str) -> None:
        """Bring the list of instances to where schedulers read it, if that is not the file."""
        ...

    async def close(self) -> None:
        """Close its connections; it is not called again."""
        ...


class Orders:
    """Makes what runs equal to what is wanted, in the background: no decision waits for a driver.

    Every place has at most one order underway, so that one that hangs keeps no other back.
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
        """Begin the orders that are missing; how many have failed since the call before.

        What failed is tried again at the next call. `members` is the list for schedulers.
        """
        if self._look is None or self._look.done():
            self._wanted = frozenset(wanted)
            self._look = asyncio.create_task(self._begin(self._wanted, members))
        failed, self._failed = self._failed, 0
        return failed

    def is_ending(self, name: str) -> bool:
        """Whether what runs in a place may be ended at any moment, whatever is wanted by now."""
        looks = self._look is not None and not self._look.done()
        return name in self._ending or (looks and name not in self._wanted)

    async def found(self) -> Mapping[str, bool]:
        """What the driver finds. Raises OSError if it fails or takes longer than `find_s`."""
        try:
            async with asyncio.timeout(TUNING.find_s):
                return await self.driver.find()
        except Exception as error:  # whatever a driver does, decisions go on
            raise OSError(f"the driver does not say what runs: {error!r}") from error

    async def close(self) -> None:
        """Stop; the next provisioner finds what was done and continues from there."""
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
        """Every failure counts."""
        self._failed += 1
        self._complaints.add(name, f"{name}: {complaint}")
