"""Discovers the engines of a cluster from the API server of Kubernetes, as they change.

A scheduler that cannot reach the API server goes on with the engines that it knows, and says so.
"""

import asyncio
import contextlib
import json
import logging
import random
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp

from foretell.config.instances import InstanceConfig, Members
from foretell.discovery import Ask, ProtocolError, Refused, Watch, of_endpoint_slice, of_pod
from foretell.discovery.watch import GONE, WATCH_S, Read
from foretell.services.process.kubernetes import KubernetesApi
from foretell.services.process.peer import read_bounded
from foretell.services.scheduler.metrics import SchedulerMetrics

logger = logging.getLogger(__name__)

_KINDS: dict[str, tuple[str, str, Read]] = {
    "pods": ("pods", "", of_pod),
    "endpointslices": ("endpointslices", "discovery.k8s.io/v1", of_endpoint_slice),
}
_RESYNC_S = 600.0
"""Interval after which everything is listed again, regardless of watch events."""
_LIST_S = 30.0
_SILENT_S = 15.0
"""A watch that goes on for so long after its due end is cut off."""
_TOGETHER_S = 0.1
"""Changes within this time are applied together."""
_MOST_BYTES = 64 << 20
"""Most bytes of one page, and of one event."""
_WRONG = (aiohttp.ClientError, TimeoutError, OSError, ValueError, RecursionError)
"""Errors of an answer. RecursionError comes from JSON that is nested too deeply."""


def is_discovered(source: str) -> bool:
    """Whether `instances` names objects of Kubernetes: `pods:SELECTOR`."""
    return source.partition(":")[0] in _KINDS and "=" in source


class Discovery:
    """Keeps the list of instances up to date from pods or EndpointSlices with given labels."""

    def __init__(
        self,
        source: str,
        take: Callable[[Members], None],
        api: KubernetesApi,
        *,
        by_name: bool = False,
        resync_s: float = _RESYNC_S,
    ) -> None:
        """`by_name`: reach predictors by name, because their certificates are for names."""
        kind, _, selector = source.partition(":")
        resource, group, read = _KINDS[kind]
        self.problem = ""
        """Why the API server cannot be heard; empty while it can."""
        self._heard_s = time.monotonic()
        self._watch = Watch(selector, read)
        self._url = api.url(resource, group)
        self._api = api
        self._take = take
        self._by_name = by_name
        self._resync_s = resync_s
        self._taking: asyncio.TimerHandle | None = None

    @property
    def unheard_s(self) -> float:
        """Seconds for which the API server could not be heard; 0 while it is."""
        return time.monotonic() - self._heard_s if self.problem else 0.0

    async def run(self) -> None:
        try:
            await self._follow()
        finally:
            if self._taking is not None:
                self._taking.cancel()

    async def _follow(self) -> None:
        listed_s = time.monotonic()
        while True:
            if time.monotonic() - listed_s > self._resync_s:
                listed_s = time.monotonic()
                self._watch.list_again()
            began_s = time.monotonic()
            try:
                await self._answer(self._watch.ask())
            except _WRONG as error:
                self._watch.failed(error)
                # No warning for a single failure, or for a resource version that is too old.
                if self._watch.failures > 1 and getattr(error, "status", 0) != GONE:
                    self._complain(repr(error))
            else:
                self._watch.ended(time.monotonic() - began_s)
            # Jitter need not be repeatable.
            await asyncio.sleep(self._watch.pause_s(random.random()))

    async def _answer(self, ask: Ask) -> None:
        within_s = WATCH_S + _SILENT_S if ask.watches else _LIST_S
        async with (
            asyncio.timeout(within_s),
            self._api.client.get(
                self._url,
                params=ask.parameters,
                headers=self._api.headers(),
                allow_redirects=False,
            ) as answer,
        ):
            if answer.status != 200:
                raise Refused(answer.status)
            if not ask.watches:
                self._heard(self._watch.page(json.loads(await read_bounded(answer, _MOST_BYTES))))
                return
            self._heard(changed=False)
            async for line in _lines(answer):
                self._heard(self._watch.event(json.loads(line)))

    def _heard(self, changed: bool) -> None:
        if self.problem:
            logger.info("discovery: the API server is heard again")
        self.problem, self._heard_s = "", time.monotonic()
        if changed and self._taking is None:
            self._taking = asyncio.get_running_loop().call_later(_TOGETHER_S, self._tell)

    def _complain(self, problem: str) -> None:
        if not self.problem:
            logger.warning(
                "discovery: the API server cannot be heard, the known engines stay: %s", problem
            )
        self.problem = problem

    def _tell(self) -> None:
        self._taking = None
        instances = tuple(
            InstanceConfig(
                each.name,
                each.url,
                (self._by_name and each.predictor_by_name) or each.predictor,
                each.draining,
                each.model,
            )
            for each in self._watch.endpoints()
        )
        self._take(Members(instances, self._watch.models()))


@contextlib.asynccontextmanager
async def discovering(
    source: str, take: Callable[[Members], None], metrics: SchedulerMetrics, *, by_name: bool
) -> AsyncIterator[Discovery | None]:
    """Run discovery while the block runs; yields None if `source` lists the instances."""
    if not is_discovered(source):
        yield None
        return
    api = KubernetesApi.of_this_pod()
    discovery = Discovery(source, take, api, by_name=by_name)
    metrics.unheard.set_function(lambda: discovery.unheard_s)
    following = asyncio.create_task(discovery.run())
    try:
        yield discovery
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await api.close()


async def _lines(answer: aiohttp.ClientResponse) -> AsyncIterator[Any]:
    pending = bytearray()
    async for part in answer.content.iter_any():
        pending += part
        *whole, rest = pending.split(b"\n")
        for line in whole:
            if line.strip():
                yield line
        pending = rest
        if len(pending) > _MOST_BYTES:
            raise ProtocolError("an event is too long")
