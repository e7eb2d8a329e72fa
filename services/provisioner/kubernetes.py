"""Engines in the pods of a StatefulSet. Scaling it down removes the last pod.

A place is a pod, by its ordinal; engine and predictor are two of its containers. The Helm chart
grants the permissions in `templates/provisioner.yaml`.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from foretell.services.process.kubernetes import KubernetesApi
from foretell.services.provisioner.api import call
from foretell.services.provisioner.driver import DriverFailed

MEMBERS = "instances.json"
"""The key of the ConfigMap `STATEFULSET-instances` that schedulers have mounted."""


class KubernetesDriver:
    """Scales one StatefulSet, and keeps the ConfigMap from which schedulers read the instances."""

    last_first = True

    def __init__(self, stateful_set: str, places: Sequence[str], api: KubernetesApi) -> None:
        """`places` in the order of their pods' ordinals."""
        self._places = list(places)
        self._api = api
        self._scale = api.url(f"statefulsets/{stateful_set}/scale", "apps/v1")
        self._config_map = api.url(f"configmaps/{stateful_set}-instances")
        self._scaling = asyncio.Lock()

    async def find(self) -> Mapping[str, bool]:
        replicas, _ = await self._replicas()
        return dict.fromkeys(self._places[:replicas], True)

    async def start(self, name: str) -> None:
        ordinal = self._places.index(name)
        async with self._scaling:
            replicas, version = await self._replicas()
            if replicas <= ordinal:
                await self._set(ordinal + 1, version)

    async def end(self, name: str) -> None:
        ordinal = self._places.index(name)
        async with self._scaling:
            replicas, version = await self._replicas()
            if replicas == ordinal + 1:  # otherwise later pods must end first
                await self._set(ordinal, version)

    async def publish(self, members: str) -> None:
        found = (await self._ask("GET", self._config_map)).get("data") or {}
        if found.get(MEMBERS) != members:
            await self._ask("PATCH", self._config_map, {"data": {MEMBERS: members}})

    async def close(self) -> None:
        await self._api.close()

    async def _replicas(self) -> tuple[int, str]:
        """The wanted number of replicas, and the version of the object that says so."""
        scale = await self._ask("GET", self._scale)
        try:
            return int(scale["spec"].get("replicas", 0)), str(scale["metadata"]["resourceVersion"])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise DriverFailed(f"Kubernetes tells no scale: {error!r}") from error

    async def _set(self, replicas: int, version: str) -> None:
        """Set the replicas. Kubernetes refuses this if the object has changed since it was read."""
        patch = {"metadata": {"resourceVersion": version}, "spec": {"replicas": replicas}}
        await self._ask("PATCH", self._scale, patch)

    async def _ask(self, method: str, url: str, patch: object = None) -> dict[str, Any]:
        return await ask(self._api, method, url, patch)


async def ask(
    api: KubernetesApi, method: str, url: str, patch: object = None, *, also: int = 200
) -> dict[str, Any]:
    """The object in the API server's answer. If its HTTP status is `also`, this is a Status object.

    Raises DriverFailed for any other status but 200, or if the answer is no JSON object.
    """
    headers = api.headers()
    if patch is not None:
        headers["content-type"] = "application/merge-patch+json"
    data = None if patch is None else json.dumps(patch)
    answer = await call(api.client, method, url, (200, also), headers=headers, data=data)
    try:
        found = json.loads(answer)
    except ValueError as error:
        raise DriverFailed(f"Kubernetes answers no JSON: {error}") from error
    if not isinstance(found, dict):
        raise DriverFailed("Kubernetes answers no object")
    return found
