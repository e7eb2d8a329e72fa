"""Decides periodically while this replica holds the lease."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

from foretell.provision import Facts, ProvisionDecision, Provisioner
from foretell.services.provisioner.fleet import EngineFleet
from foretell.services.provisioner.gather import Gatherer
from foretell.services.provisioner.lease import LeaseLost, ProvisionerLease
from foretell.services.provisioner.metrics import ProvisionerMetrics
from foretell.services.provisioner.record import DecisionRecord
from foretell.services.provisioner.tuning import TUNING

logger = logging.getLogger(__name__)

Listener = Callable[[ProvisionDecision], None]


class Loop:
    """One replica. `make` creates a new provisioner and fleet whenever it becomes active."""

    def __init__(
        self,
        lease: ProvisionerLease,
        make: Callable[[], tuple[Provisioner, EngineFleet]],
        gatherer: Gatherer,
        record: DecisionRecord,
        metrics: ProvisionerMetrics,
        *,
        every_s: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.decision: ProvisionDecision | None = None
        """The latest decision of this replica; None while it stands by."""
        self.listeners: list[Listener] = []
        """Called with every decision."""
        self._lease = lease
        self._make = make
        self._gatherer = gatherer
        self._record = record
        self._metrics = metrics
        self._every_s = every_s
        self._clock = clock
        self._active: tuple[Provisioner, EngineFleet] | None = None
        self._given_up = 0
        self._facts: Facts | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Decide until `stop`, then release the lease."""
        try:
            while not stop.is_set():
                began_s = time.monotonic()
                await self._turn()
                pause_s = self._every_s if self._active else min(self._every_s, TUNING.standby_s)
                left_s = max(0.0, pause_s - (time.monotonic() - began_s))
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), left_s or 0.001)
        finally:
            await asyncio.to_thread(self._lease.release)
            self._metrics.active.set(0)

    async def _turn(self) -> None:
        if not await asyncio.to_thread(self._lease.take):
            self._stand_by()
            return
        if self._active is None:
            logger.info("this replica decides, epoch %d", self._lease.epoch)
            self._active, self._given_up = self._make(), 0
        self._metrics.active.set(1)
        try:
            await self._decide(*self._active)
        except LeaseLost:
            self._stand_by()

    def _stand_by(self) -> None:
        if self._active is not None:
            logger.warning("another replica decides from now on")
        self._active, self.decision, self._facts = None, None, None
        self._metrics.active.set(0)

    async def _decide(self, provisioner: Provisioner, fleet: EngineFleet) -> None:
        now_s = self._clock()
        try:
            seen = await fleet.look(now_s)
        except (OSError, ValueError) as error:
            self._metrics.driver_failures.inc()
            logger.warning("the instances are not known, nothing is decided: %s", error)
            return
        facts = await self._gatherer.gather(seen, now_s, fleet.asked_for)
        decision = await asyncio.to_thread(provisioner.decide, facts)
        self._tell(provisioner, facts, decision)
        with self._lease.guarded():
            self._record.add(facts, decision, self._lease.epoch)
        try:
            async with asyncio.timeout(TUNING.act_s):
                failed = await fleet.act(decision, now_s)
        except TimeoutError:
            failed = 1
            logger.warning("orders took longer than %.0f s and were given up", TUNING.act_s)
        self._metrics.driver_failures.inc(failed)

    def _tell(self, provisioner: Provisioner, facts: Facts, decision: ProvisionDecision) -> None:
        before, self.decision, self._facts = self.decision, decision, facts
        if before is None or (before.desired, before.because) != (
            decision.desired,
            decision.because,
        ):
            logger.info("%d instances (%s): %s", decision.desired, decision.because, decision.why)
        self._metrics.show(facts, decision)
        self._metrics.cold_start.set(provisioner.cold_start_s)
        self._metrics.given_up.inc(provisioner.given_up_total - self._given_up)
        self._given_up = provisioner.given_up_total
        for listener in self.listeners:
            listener(decision)

    def is_active(self) -> bool:
        """Whether this replica is the one that decides."""
        return self._active is not None

    def status(self) -> dict[str, object]:
        """What `/status` shows."""
        facts = self._facts
        return {
            "active": self.is_active(),
            "epoch": self._lease.epoch,
            "decision": self._record.latest[-1] if self.decision else None,
            "instances": [
                {"instance_id": i.instance_id, "phase": i.phase.value, "since_unix_s": i.since_s}
                for i in (facts.instances if facts else ())
            ],
            "decisions": list(self._record.latest) if self.decision else [],
        }
