"""Engines that the provisioner starts and stops: a driver or `foretell up` runs the wanted ones.

The whole state is in one file, which is replaced atomically: a replica that takes over after a
crash at any step finds every wanted engine and continues with it.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp

from foretell.config.instances import InstanceConfig, Members, members_json
from foretell.config.layout import ENGINES_FILE, INSTANCES_FILE
from foretell.provision import InstancePhase, ProvisionDecision
from foretell.services.process.folders import write_whole
from foretell.services.provisioner.driver import Orders
from foretell.services.provisioner.fleet import FleetView, answers
from foretell.services.provisioner.lease import ProvisionerLease
from foretell.services.provisioner.tuning import TUNING

logger = logging.getLogger(__name__)

_EPOCH_FILE = "engines.epoch"
"""Holds the epoch of the lease under which the file of engines was written."""


@dataclass(frozen=True, slots=True)
class _Engine:
    """One wanted engine."""

    phase: InstancePhase
    since_s: float


class EnginePlaces:
    """Engines in a fixed number of places, each with its own ports and sockets."""

    def __init__(
        self,
        folder: Path,
        places: Sequence[InstanceConfig],
        models: Sequence[str],
        client: aiohttp.ClientSession,
        lease: ProvisionerLease,
        is_empty: Callable[[str, float], bool],
        orders: Orders | None = None,
    ) -> None:
        """`is_empty` returns whether a draining instance has no requests left at a time. Without
        `orders`, another process reads the file and runs the engines that it names."""
        self._state, self._instances = folder / ENGINES_FILE, folder / INSTANCES_FILE
        self._written_under = folder / _EPOCH_FILE
        self._has_looked = False
        self._places = {place.instance_id: place for place in places}
        self._models = tuple(models)
        self._client = client
        self._lease = lease
        self._is_empty = is_empty
        self._orders = orders
        self._engines: dict[str, _Engine] = {}
        self._answered_s: dict[str, float] = {}

    @property
    def asked_for(self) -> int | None:
        """The number of engines wanted by the file, which a person may edit."""
        return sum(engine.phase is not InstancePhase.DRAINING for engine in self._engines.values())

    async def look(self, now_s: float) -> list[FleetView]:
        """Read the wanted engines and probe them. A warming one that answers becomes ready."""
        known = None if self._is_outdated() else self._read(now_s)
        self._has_looked = True
        self._engines = await self._adopted(now_s) if known is None else known
        names = list(self._engines)
        urls = [self._places[name].url for name in names]
        alive = await asyncio.gather(*(answers(self._client, url) for url in urls))
        seen = []
        for name, is_alive in zip(names, alive, strict=True):
            engine = self._engines[name]
            if is_alive:
                self._answered_s[name] = now_s
                if engine.phase is InstancePhase.WARMING:
                    engine = self._engines[name] = _Engine(InstancePhase.READY, now_s)
                    logger.info("%s is ready", name)
            place = replace(self._places[name], draining=engine.phase is InstancePhase.DRAINING)
            down_since_s = self._answered_s.get(name, now_s)
            if engine.phase is InstancePhase.READY and now_s - down_since_s > TUNING.down_s:
                engine = _Engine(InstancePhase.WARMING, down_since_s)
            seen.append(FleetView(place, engine.phase, engine.since_s))
        self._write()
        return seen

    async def act(self, decision: ProvisionDecision, now_s: float) -> int:
        """Take back, start, drain and stop engines. A start without a free place is repeated later.

        Taking back an engine that has ended meanwhile counts as failed.
        """
        engines = self._engines
        failed = self._take_back(decision, now_s)
        if self._orders is not None and self._orders.driver.last_first:
            self._let_last_go(decision, now_s)
        else:
            for name in decision.stop:
                engines.pop(name, None)
            for name in decision.drain:
                if name in engines:
                    engines[name] = _Engine(InstancePhase.DRAINING, now_s)
        for name, engine in list(engines.items()):
            # One whose drain begins now is not empty: no scheduler knows yet that it drains.
            if engine.phase is InstancePhase.DRAINING and self._is_empty(name, now_s):
                logger.info("%s is empty and stops", name)
                del engines[name]
        free = [name for name in self._places if name not in engines and self._is_free(name)]
        for name in free[: decision.start]:
            logger.info("%s starts", name)
            engines[name] = _Engine(InstancePhase.WARMING, now_s)
            self._answered_s.pop(name, None)
        members = self._write()
        failed += max(0, decision.start - len(free))
        return failed if self._orders is None else failed + self._orders.follow(engines, members)

    def _take_back(self, decision: ProvisionDecision, now_s: float) -> int:
        """Let as many draining engines serve again as the decision names; return how many are gone.

        If only the last place can be ended, the first draining ones are taken, whatever is named.
        """
        engines, names = self._engines, decision.take_back
        if self._orders is not None and self._orders.driver.last_first:
            draining = (n for n in self._places if self._drains(n))
            names = tuple(draining)[: len(names)]
        kept = [name for name in names if self._drains(name)]
        for name in kept:
            logger.info("%s serves again", name)
            engines[name] = _Engine(InstancePhase.READY, now_s)
        return len(decision.take_back) - len(kept)

    def _drains(self, name: str) -> bool:
        return name in self._engines and self._engines[name].phase is InstancePhase.DRAINING

    def _let_last_go(self, decision: ProvisionDecision, now_s: float) -> None:
        """End as many engines as the decision names, but the last ones: no others can be ended.

        An engine to be stopped that is not the last is warming again: the platform keeps trying.
        """
        engines = self._engines

        def last() -> str:
            staying = (
                n for n, engine in engines.items() if engine.phase is not InstancePhase.DRAINING
            )
            return max(staying, key=list(self._places).index, default="")

        for name in sorted(decision.stop, key=list(self._places).index, reverse=True):
            if name == last():
                del engines[name]
            elif name in engines:
                engines[name] = _Engine(InstancePhase.WARMING, now_s)
        for _ in decision.drain:
            if (name := last()) and engines[name].phase is InstancePhase.WARMING:
                del engines[name]
            elif name:
                engines[name] = _Engine(InstancePhase.DRAINING, now_s)

    def _is_free(self, name: str) -> bool:
        return self._orders is None or not self._orders.is_ending(name)

    def _is_outdated(self) -> bool:
        """Whether another replica, with a folder of its own, has been active since the file was
        written."""
        if self._has_looked or self._orders is None or self._lease.shares_folder:
            return False
        try:
            written = int(self._written_under.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return True
        return written < self._lease.epoch - 1

    async def _adopted(self, now_s: float) -> dict[str, _Engine]:
        """The engines that run although the file is missing or outdated: they are taken over."""
        running = {} if self._orders is None else await self._orders.found()
        return {
            name: _Engine(InstancePhase.WARMING, now_s) for name in self._places if name in running
        }

    def _read(self, now_s: float) -> dict[str, _Engine] | None:
        """The wanted engines in the file; None: there is no file. Raises ValueError if it is
        malformed, since a person may have edited it."""
        try:
            found = json.loads(self._state.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        if not isinstance(found, dict) or not found.keys() <= self._places.keys():
            raise ValueError(f"{self._state} must name engines of {', '.join(self._places)}")
        try:
            return {
                name: _Engine(InstancePhase(fields["phase"]), float(fields.get("since_s", now_s)))
                for name, fields in found.items()
            }
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"{self._state}: every engine needs a phase") from error

    def _write(self) -> str:
        """Write the state; return the list for schedulers. The list is written first, since an
        engine is stopped only when no scheduler sends to it."""
        listed = [
            replace(self._places[name], draining=engine.phase is InstancePhase.DRAINING)
            for name, engine in self._engines.items()
            if engine.phase is not InstancePhase.WARMING
        ]
        members = members_json(Members(tuple(listed), self._models))
        state = {
            name: {"phase": engine.phase.value, "since_s": engine.since_s}
            for name, engine in self._engines.items()
        }
        files = [(self._instances, members), (self._state, json.dumps(state))]
        if not self._lease.shares_folder:
            files.append((self._written_under, str(self._lease.epoch)))
        with self._lease.guarded():
            for path, text in files:
                if not path.exists() or path.read_text(encoding="utf-8") != text:
                    write_whole(path, text)
        return members
