"""The instances that decisions are about, and how decisions are carried out."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import aiohttp

from foretell.config import parse_instances
from foretell.config.instances import InstanceConfig, parse_members
from foretell.provision import InstancePhase, ProvisionDecision
from foretell.services.provisioner.tuning import TUNING


@dataclass(frozen=True, slots=True)
class FleetView:
    """One instance, and since when it has been in its phase (Unix time)."""

    config: InstanceConfig
    phase: InstancePhase
    since_s: float


class EngineFleet(Protocol):
    """The instances, and how decisions about them are carried out."""

    async def look(self, now_s: float) -> list[FleetView]:
        """All instances, with their phases."""
        ...

    @property
    def asked_for(self) -> int | None:
        """The number of instances last asked for, by a decision or a person; None: unknown."""
        ...

    async def act(self, decision: ProvisionDecision, now_s: float) -> int:
        """Carry out a decision; return how many orders failed and must be repeated."""
        ...


async def answers(client: aiohttp.ClientSession, url: str) -> bool:
    """Whether an engine answers its health probe."""
    try:
        async with asyncio.timeout(TUNING.answer_s), client.get(f"{url}/health") as answer:
            return answer.status == 200
    except (aiohttp.ClientError, OSError, TimeoutError):
        return False


class WatchedFleet:
    """Instances that others start and stop, listed in the schedulers' file.

    An instance that does not answer counts as warming for `give_up_s`, and then as gone.
    """

    asked_for: int | None = None

    def __init__(self, source: str, client: aiohttp.ClientSession, give_up_s: float) -> None:
        """`source`: the path of a cluster file or of a list of instances, or the list itself."""
        self._source = source
        self._client = client
        self._give_up_s = give_up_s
        self._known: dict[str, tuple[InstancePhase, float]] = {}

    async def look(self, now_s: float) -> list[FleetView]:
        configs = self._read()
        urls = [config.url for config in configs]
        alive = await asyncio.gather(*(answers(self._client, url) for url in urls))
        before, self._known = self._known, {}
        seen = []
        for config, is_alive in zip(configs, alive, strict=True):
            phase = InstancePhase.READY if is_alive else InstancePhase.WARMING
            if config.draining:
                phase = InstancePhase.DRAINING
            was, since_s = before.get(config.instance_id, (None, now_s))
            since_s = since_s if was is phase else now_s
            self._known[config.instance_id] = phase, since_s
            if phase is not InstancePhase.WARMING or now_s - since_s <= self._give_up_s:
                seen.append(FleetView(config, phase, since_s))
        return seen

    async def act(self, decision: ProvisionDecision, now_s: float) -> int:
        """Nothing: the decision is advice."""
        return 0

    def _read(self) -> Sequence[InstanceConfig]:
        """Read the source anew, since it may have changed. Raises OSError or ValueError."""
        if self._source.lstrip().startswith(("[", "{")):
            return parse_members(self._source).instances
        path = Path(self._source)
        text = path.read_text(encoding="utf-8")
        if path.suffix in (".yaml", ".yml"):
            text = json.dumps(parse_instances(text, path.absolute().parent))
        return parse_members(text).instances
