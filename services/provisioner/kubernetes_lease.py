"""One active provisioner among replicas in Kubernetes: they agree by a Lease, as its own do.

Each replica goes by its own clock: it counts from when it has seen the holder renew. Who could not
renew for `VALID_S` writes nothing any more, well before another one takes over at `LEASE_S`.
Source: `leaderelection` of Kubernetes' client-go.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import aiohttp

from foretell.services.process.kubernetes import KubernetesApi
from foretell.services.provisioner.driver import DriverFailed
from foretell.services.provisioner.kubernetes import ask
from foretell.services.provisioner.lease import LEASE_S, LeaseLost

logger = logging.getLogger(__name__)

VALID_S = LEASE_S * 2 / 3
_WITHIN_S = 5.0
_CONFLICT = 409


def _boot_s() -> float:
    """Time that goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class KubernetesLease:
    """This replica's view of a Lease that is there. Not for the thread of the event loop."""

    def __init__(
        self,
        name: str,
        holder: str,
        api: KubernetesApi,
        loop: asyncio.AbstractEventLoop,
        *,
        clock: Callable[[], float] = _boot_s,
    ) -> None:
        """`loop` is that of `api`."""
        self.epoch = 0
        """That of this replica; 0 while it does not hold the lease."""
        self._url = api.url(f"leases/{name}", "coordination.k8s.io/v1")
        self._holder = holder
        self._api = api
        self._loop = loop
        self._clock = clock
        self._renewed_s = 0.0
        self._seen: tuple[object, ...] = ()
        self._seen_s = 0.0

    def take(self) -> bool:
        """Take the lease, or keep it; whether this replica is the active one."""
        try:
            return self._wait(self._take())
        except (DriverFailed, aiohttp.ClientError, TimeoutError, OSError) as error:
            logger.warning("the Lease cannot be read or renewed: %s", error or repr(error))
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
        """Another replica may take over at once; after `LEASE_S` if the API server is silent."""
        if not self.epoch:
            return
        self.epoch = 0
        try:
            self._wait(self._release())
        except (DriverFailed, aiohttp.ClientError, TimeoutError, OSError) as error:
            logger.warning("the Lease cannot be given back: %s", error or repr(error))

    def _is_valid(self) -> bool:
        return bool(self.epoch) and self._clock() - self._renewed_s <= VALID_S

    def _wait(self, work: Coroutine[Any, Any, bool]) -> bool:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _take(self) -> bool:
        now_s = self._clock()
        spec, version = await self._read()
        holder, transitions = spec.get("holderIdentity") or "", int(spec.get("leaseTransitions", 0))
        seen = (holder, transitions, spec.get("renewTime"))
        if seen != self._seen:
            self._seen, self._seen_s = seen, now_s
        mine = bool(self.epoch) and (holder, transitions) == (self._holder, self.epoch)
        if not mine:
            self.epoch = 0
            if holder not in ("", self._holder) and now_s - self._seen_s <= LEASE_S:
                return False
            transitions += 1
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        changes = {
            "holderIdentity": self._holder,
            "leaseDurationSeconds": int(LEASE_S),
            "leaseTransitions": transitions,
            "renewTime": now,
            **({} if mine else {"acquireTime": now}),
        }
        if not await self._write(changes, version):
            return False
        # From before it was asked for: others count from later.
        self.epoch, self._renewed_s = transitions, now_s
        return True

    async def _release(self) -> bool:
        spec, version = await self._read()
        return spec.get("holderIdentity") == self._holder and await self._write(
            {"holderIdentity": ""}, version
        )

    async def _read(self) -> tuple[Mapping[str, Any], str]:
        async with asyncio.timeout(_WITHIN_S):
            found = await ask(self._api, "GET", self._url)
        return found.get("spec") or {}, str((found.get("metadata") or {}).get("resourceVersion"))

    async def _write(self, spec: Mapping[str, Any], version: str) -> bool:
        """Whether nobody else was faster."""
        patch = {"metadata": {"resourceVersion": version}, "spec": spec}
        async with asyncio.timeout(_WITHIN_S):
            found = await ask(self._api, "PATCH", self._url, patch, also=_CONFLICT)
        return found.get("kind") != "Status"
