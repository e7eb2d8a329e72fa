"""How many requests may be in flight at once, by schedulers' predictions."""

import time
from math import inf
from typing import Any

from foretell.batch.release import InstanceView, Release
from foretell.cosched.deadlines import OFFLINE_APART
from foretell.services.batch.executor import Executor
from foretell.services.batch.target import Endpoints

_IDLE_LOOK_S = 2.0
"""Seconds between two looks while no batch is in progress, or no scheduler has answered."""


class Window:
    """The number of requests that may be in flight, as of the latest `look`."""

    def __init__(
        self, endpoints: Endpoints, ttft_target_s: float = inf, *, fixed: int = 0, plain: int = 0
    ) -> None:
        """`ttft_target_s`: the target of online requests. `fixed`: a constant size; 0: what
        schedulers' predictions allow. `plain`: the size while no scheduler has answered."""
        self._endpoints, self._fixed, self._plain = endpoints, fixed, plain
        self._release = Release(ttft_target_s)
        self._told = False
        self._next_s = 0.0

    @property
    def size(self) -> int:
        """Requests that may be in flight now."""
        return self._fixed or (self._release.window if self._told else self._plain)

    @property
    def instances(self) -> int:
        """Instances that requests may go to, as last seen."""
        return self._release.instances

    async def look(self, executor: Executor) -> None:
        """Ask a scheduler if a look is due; while no batch is in progress, only whether online
        requests come. Must be called every `LOOK_S`."""
        now_s = time.monotonic()
        if not executor.busy:
            self._release.observe({}, 0)  # forgets windows: the next batch begins with new ones
        often = executor.busy and self._told
        if self._fixed or (now_s < self._next_s and not often):
            return
        self._next_s = now_s + _IDLE_LOOK_S
        status = await self._endpoints.status()
        if status is None or "instances" not in status:
            return
        self._told = True
        expects_online = self._endpoints.expects_online(status)
        if executor.busy:
            seen = dict(map(_seen_of, status["instances"]))
            in_flight, unsent = executor.in_flight, executor.unsent
            self._release.observe(seen, in_flight, unsent=unsent, expects_online=expects_online)
            executor.wake()


def _seen_of(instance: dict[str, Any]) -> tuple[str, InstanceView]:
    """The name of an instance in a scheduler's status, and what is known about it."""
    usable = instance["healthy"] and not instance.get("draining")
    seen = InstanceView(
        usable,
        instance.get("waiting"),
        instance.get("predicted_ttft_s"),
        instance.get("running"),
        chooses=OFFLINE_APART in (instance.get("approximations") or ()),
        max_num_seqs=instance.get("max_num_seqs"),
    )
    return instance["instance_id"], seen
