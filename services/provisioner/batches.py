"""Asks the batch service when batches are due, and how much of them is left."""

import json
from dataclasses import replace
from typing import Any

import aiohttp

from foretell.provision.batches import BatchDemand, Due
from foretell.services.process.peer import open_peer, read_bounded
from foretell.services.process.traffic import Traffic
from foretell.services.provisioner.complaints import Complaints
from foretell.services.provisioner.tuning import TUNING

_NAME = "batches"


class BatchService:
    """A client of the batch service, whose last answer counts until the next one."""

    def __init__(self, address: str, traffic: Traffic, complaints: Complaints) -> None:
        """`address` is `unix:PATH` or `HOST:PORT`; empty: there is no such service."""
        self._address, self._traffic, self._complaints = address, traffic, complaints
        self._opened: tuple[str, aiohttp.ClientSession] | None = None
        self._told, self._heard_s = BatchDemand(), 0.0

    async def close(self) -> None:
        """Close all connections."""
        if self._opened is not None:
            await self._opened[1].close()

    async def ask(self, now_s: float) -> BatchDemand:
        """The batches that have not ended, at `now_s`, Unix time."""
        if not self._address:
            return self._told
        try:
            self._told, self._heard_s = _batches_of(await self._status(), now_s), now_s
            self._complaints.settle(_NAME)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            self._complaints.add(_NAME, f"the batch service does not answer: {error!r}")
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            self._complaints.add(_NAME, f"the batch service gives no status: {error!r}")
        ago_s = now_s - self._heard_s
        # Work goes on meanwhile: time and work left shrink alike. Batches due by now are dropped.
        return replace(self._told, due=[d for d in self._told.due if d.within_s > ago_s])

    async def _status(self) -> Any:
        if self._opened is None:
            limit = aiohttp.ClientTimeout(total=TUNING.answer_s)
            self._opened = open_peer(self._address, self._traffic, timeout=limit)
        url, session = self._opened
        async with session.get(f"{url}/status", headers=self._traffic.headers("")) as answer:
            answer.raise_for_status()
            return json.loads(await read_bounded(answer, TUNING.status_bytes))


def _batches_of(status: Any, now_s: float) -> BatchDemand:
    """Raises AttributeError, KeyError, TypeError or ValueError if the status is malformed."""
    due = [
        Due(
            float(each["due_unix_s"]) - now_s,
            None if each["left_s"] is None else float(each["left_s"]),
        )
        for each in status["batches"]
    ]
    return BatchDemand(int(status["instances"]), due)
