"""One active provisioner among replicas in Kubernetes: they use a Lease, as its controllers do."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from datetime import UTC, datetime
from typing import Any

import aiohttp

from foretell.services.process.kubernetes import KubernetesApi
from foretell.services.provisioner.driver import DriverFailed
from foretell.services.provisioner.kubernetes import ask
from foretell.services.provisioner.lease import LEASE_S, Held, ProvisionerLease, boot_s

_WITHIN_S = 5.0
_CONFLICT = 409
_FAILURES = (DriverFailed, aiohttp.ClientError, TimeoutError, OSError)


class KubernetesLease(ProvisionerLease):
    """An existing Lease object."""

    def __init__(
        self,
        name: str,
        holder: str,
        api: KubernetesApi,
        loop: asyncio.AbstractEventLoop,
        *,
        clock: Callable[[], float] = boot_s,
    ) -> None:
        """`loop` is the event loop of `api`."""
        super().__init__(holder, _FAILURES, clock)
        self._url = api.url(f"leases/{name}", "coordination.k8s.io/v1")
        self._api = api
        self._loop = loop

    def _read(self) -> Held:
        found = self._wait(ask(self._api, "GET", self._url))
        spec: Mapping[str, Any] = found.get("spec") or {}
        version = (found.get("metadata") or {}).get("resourceVersion")
        holder, epoch = spec.get("holderIdentity") or "", int(spec.get("leaseTransitions", 0))
        return Held(holder, epoch, str(version))

    def _write(self, held: Held, holder: str, epoch: int) -> bool:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec: dict[str, Any] = {"holderIdentity": holder}
        if holder:
            spec |= {
                "leaseDurationSeconds": int(LEASE_S),
                "leaseTransitions": epoch,
                "renewTime": now,
                **({} if epoch == held.epoch else {"acquireTime": now}),
            }
        patch = {"metadata": {"resourceVersion": held.version}, "spec": spec}
        found = self._wait(ask(self._api, "PATCH", self._url, patch, also=_CONFLICT))
        return bool(found.get("kind") != "Status")

    def _wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        async def within() -> Any:
            async with asyncio.timeout(_WITHIN_S):
                return await work

        return asyncio.run_coroutine_threadsafe(within(), self._loop).result()
