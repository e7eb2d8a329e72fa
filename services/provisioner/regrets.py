"""Looks back: every hour, when it is over, is replayed with one instance less and one more."""

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from foretell.services.process.aside import AsideFailed, computed_aside
from foretell.services.provisioner.lease import Lease, LeaseLost, write_whole
from foretell.services.provisioner.metrics import ProvisionerMetrics
from foretell.services.provisioner.replay import AFTER_S

logger = logging.getLogger(__name__)

WINDOW_S = 3600.0
KEPT = 168
"""Windows whose regret is kept: those of a week."""
LIMIT_S = 600.0
"""Longest time that a replay may take."""
LOOK_EVERY_S = 15.0
_FILE = "regret.json"
_PROCESS = "foretell.services.provisioner.replay"


class Regrets:
    """Those of the replica that decides, in a file that all replicas share."""

    def __init__(
        self,
        folder: Path,
        lease: Lease,
        metrics: ProvisionerMetrics,
        *,
        window_s: float = WINDOW_S,
        after_s: float = AFTER_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """A window is replayed `after_s` after its end, in a process of its own."""
        self._folder = folder
        self._lease = lease
        self._metrics = metrics
        self._window_s = window_s
        self._after_s = after_s
        self._clock = clock
        self._done_s = 0.0

    @asynccontextmanager
    async def looking_back(self, active: Callable[[], bool]) -> AsyncIterator[None]:
        """Meanwhile each window is replayed once it is over, if this replica is `active` then."""
        task = asyncio.create_task(self._run(active))
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _run(self, active: Callable[[], bool]) -> None:
        while True:
            if active():
                try:
                    await self.look_back()
                except (OSError, KeyError, TypeError, ValueError) as error:
                    # The disk is full, or another release has written the file.
                    self._failed(error)
            await asyncio.sleep(LOOK_EVERY_S)

    async def look_back(self) -> None:
        """Replay the latest window that is over, unless that has been done."""
        windows = await asyncio.to_thread(self.windows)
        if windows:
            self._done_s = max(self._done_s, windows[-1]["ends_s"])
            self._metrics.look_back(windows[-1])
        ends_s = (self._clock() - self._after_s) // self._window_s * self._window_s
        if ends_s <= self._done_s:
            return
        self._done_s = ends_s  # also where it fails: it would fail again
        asked = {
            "folder": str(self._folder),
            "begins_s": ends_s - self._window_s,
            "ends_s": ends_s,
        }
        found = await self._replayed(asked)
        if found is None:
            return
        self._metrics.look_back(found)
        with contextlib.suppress(LeaseLost), self._lease.guarded():
            kept = [*windows, found][-KEPT:]
            write_whole(self._folder / _FILE, json.dumps(kept))

    def windows(self) -> list[dict[str, Any]]:
        """All that are kept, the oldest first."""
        try:
            found: list[dict[str, Any]] = json.loads((self._folder / _FILE).read_text("utf-8"))
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as error:
            logger.warning("what decisions have cost is forgotten: %s", error)
            return []
        return found

    async def _replayed(self, asked: dict[str, Any]) -> dict[str, Any] | None:
        """None where it failed, which is logged, or where nothing is known of that time."""
        try:
            output = await computed_aside(_PROCESS, json.dumps(asked).encode(), LIMIT_S)
        except (TimeoutError, AsideFailed, OSError) as error:
            self._failed(error)
            return None
        answer = json.loads(output)
        if "error" in answer:
            self._failed(answer["error"])
            return None
        if answer["unreadable"]:
            logger.warning("%d lines of the record cannot be read", answer["unreadable"])
        found: dict[str, Any] | None = answer["regret"]
        return found

    def _failed(self, why: object) -> None:
        self._metrics.regret_failures.inc()
        logger.warning("the last %.0f s were not replayed: %r", self._window_s, why)
