"""Engines in the pods of a StatefulSet, which is scaled; its last pod is the one that goes.

A place is a pod, by its ordinal; engine and predictor are two containers of it. What is allowed to
whom is in the Helm chart, `templates/provisioner.yaml`.
"""

import asyncio
import json
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp

from foretell.services.provisioner.api import call
from foretell.services.provisioner.driver import DriverFailed

CREDENTIALS = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds its service account's token, which changes, its namespace and the authority."""
MEMBERS = "instances.json"
"""The key of the ConfigMap `STATEFULSET-instances` that schedulers have mounted."""


class KubernetesDriver:
    """Scales one StatefulSet, and keeps the ConfigMap from which schedulers read the instances."""

    last_first = True

    def __init__(
        self, stateful_set: str, places: Sequence[str], server: str, credentials: Path = CREDENTIALS
    ) -> None:
        """`places` in the order of their pods' ordinals; `server`: https://HOST:PORT.

        Raises OSError if the credentials cannot be read.
        """
        self._places = list(places)
        self._token = credentials / "token"
        namespace = (credentials / "namespace").read_text(encoding="utf-8").strip()
        of_apps = f"{server}/apis/apps/v1/namespaces/{namespace}"
        self._scale = f"{of_apps}/statefulsets/{stateful_set}/scale"
        core = f"{server}/api/v1/namespaces/{namespace}"
        self._config_map = f"{core}/configmaps/{stateful_set}-instances"
        # The service account's authority and no other.
        context = ssl.create_default_context(cafile=str(credentials / "ca.crt"))
        self._client = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context),
            timeout=aiohttp.ClientTimeout(),  # who calls sets the limits of time
            trust_env=False,
        )
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
            if replicas == ordinal + 1:  # otherwise those behind it go first
                await self._set(ordinal, version)

    async def publish(self, members: str) -> None:
        found = (await self._ask("GET", self._config_map)).get("data") or {}
        if found.get(MEMBERS) != members:
            await self._ask("PATCH", self._config_map, {"data": {MEMBERS: members}})

    async def close(self) -> None:
        await self._client.close()

    async def _replicas(self) -> tuple[int, str]:
        """How many are asked for, and the version of the object that says so."""
        scale = await self._ask("GET", self._scale)
        try:
            return int(scale["spec"].get("replicas", 0)), str(scale["metadata"]["resourceVersion"])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise DriverFailed(f"Kubernetes tells no scale: {error!r}") from error

    async def _set(self, replicas: int, version: str) -> None:
        """Refused by Kubernetes if somebody else has changed the object since it was read."""
        patch = {"metadata": {"resourceVersion": version}, "spec": {"replicas": replicas}}
        await self._ask("PATCH", self._scale, patch)

    async def _ask(self, method: str, url: str, patch: object = None) -> dict[str, Any]:
        headers = {"authorization": f"Bearer {self._token.read_text(encoding='utf-8').strip()}"}
        if patch is not None:
            headers["content-type"] = "application/merge-patch+json"
        data = None if patch is None else json.dumps(patch)
        body = await call(self._client, method, url, headers=headers, data=data)
        try:
            found = json.loads(body)
        except ValueError as error:
            raise DriverFailed(f"Kubernetes answers no JSON: {error}") from error
        if not isinstance(found, dict):
            raise DriverFailed("Kubernetes answers no object")
        return found
