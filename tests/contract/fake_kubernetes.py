"""A Kubernetes API server over TLS that has one StatefulSet and one ConfigMap.

Its objects are the official client's models. It allows what the Helm chart's Role allows.
"""

import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web
from certificates import make_certificate
from kubernetes.client import ApiClient
from kubernetes.client.models import (
    V1ConfigMap,
    V1Lease,
    V1LeaseSpec,
    V1ObjectMeta,
    V1Scale,
    V1ScaleSpec,
    V1Status,
)

_GET_AND_PATCH = ["get", "patch"]
RULES: list[dict[str, Any]] = [
    {
        "apiGroups": ["apps"],
        "resources": ["statefulsets/scale"],
        "resourceNames": ["vllm"],
        "verbs": _GET_AND_PATCH,
    },
    {
        "apiGroups": [""],
        "resources": ["configmaps"],
        "resourceNames": ["vllm-instances"],
        "verbs": _GET_AND_PATCH,
    },
    {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "resourceNames": ["vllm-provisioner"],
        "verbs": _GET_AND_PATCH,
    },
]
"""The rules of the Role in the Helm chart; a test of the chart compares them."""


class FakeKubernetes:
    """The namespace `llm`."""

    def __init__(self) -> None:
        self.url = ""
        self.tokens = {"first"}
        self.replicas = 0
        self.version = 1
        self.members: str | None = "[]"
        """The content of the ConfigMap; None: it has no data."""
        self.lease: dict[str, Any] = {}
        self.lease_version = 1
        self.patches: list[dict[str, Any]] = []
        self.refused = 0
        self.meddle = lambda: None
        """Called between a read and a write."""

    def make_credentials(self, folder: Path) -> Path:
        """Write the service account's files that a pod has mounted; return their folder."""
        folder.mkdir()
        (folder / "token").write_text("first\n")
        (folder / "namespace").write_text("llm")
        (folder / "ca.crt").write_bytes((folder.parent / "foretell.pem").read_bytes())
        return folder

    async def answer(self, request: web.Request) -> web.Response:
        if request.headers.get("authorization", "").removeprefix("Bearer ") not in self.tokens:
            return self._refuse(401, "Unauthorized")
        *_, kind, name = request.path.removesuffix("/scale").split("/")
        resource = f"{kind}/scale" if request.path.endswith("/scale") else kind
        group = request.path.split("/")[2] if request.path.startswith("/apis/") else ""
        verb = request.method.lower()
        if not any(
            group in rule["apiGroups"]
            and resource in rule["resources"]
            and name in rule["resourceNames"]
            and verb in rule["verbs"]
            for rule in RULES
        ):
            return self._refuse(403, f'{resource} "{name}" is forbidden: cannot {verb} it')
        if verb == "patch" and (refusal := self._take(await request.read(), request, resource)):
            return refusal
        answer = self._object(resource, name)
        if verb == "get":
            self.meddle()
        return answer

    def _take(self, body: bytes, request: web.Request, resource: str) -> web.Response | None:
        if request.content_type != "application/merge-patch+json":
            return self._refuse(415, "the body of the request was in an unknown format")
        patch = json.loads(body)
        self.patches.append(patch)
        if resource == "configmaps":
            self.members = patch["data"]["instances.json"]
            return None
        if resource == "leases":
            if patch["metadata"]["resourceVersion"] != str(self.lease_version):
                return self._refuse(409, "the object has been modified; please apply your changes")
            self.lease, self.lease_version = self.lease | patch["spec"], self.lease_version + 1
            return None
        if patch["metadata"]["resourceVersion"] != str(self.version):
            return self._refuse(409, "the object has been modified; please apply your changes")
        self.replicas, self.version = patch["spec"]["replicas"], self.version + 1
        return None

    def _object(self, resource: str, name: str) -> web.Response:
        metadata = V1ObjectMeta(name=name, namespace="llm", resource_version=str(self.version))
        if resource == "configmaps":
            data = None if self.members is None else {"instances.json": self.members}
            return _json(V1ConfigMap("v1", data=data, kind="ConfigMap", metadata=metadata))
        if resource == "leases":
            lease = V1Lease(
                "coordination.k8s.io/v1", "Lease", metadata, V1LeaseSpec(**_snake(self.lease))
            )
            metadata.resource_version = str(self.lease_version)
            return _json(lease)
        # The Go server leaves zeros out.
        spec = V1ScaleSpec(replicas=self.replicas or None)
        return _json(V1Scale("autoscaling/v1", "Scale", metadata, spec))

    def _refuse(self, status: int, message: str) -> web.Response:
        self.refused += 1
        found = V1Status("v1", code=status, kind="Status", message=message, status="Failure")
        return _json(found, status)


def _snake(spec: dict[str, Any]) -> dict[str, Any]:
    names = {json_name: name for name, json_name in V1LeaseSpec.attribute_map.items()}
    return {names[name]: value or None for name, value in spec.items()}


def _json(model: object, status: int = 200) -> web.Response:
    return web.json_response(ApiClient().sanitize_for_serialization(model), status=status)


@asynccontextmanager
async def serving(api: FakeKubernetes, folder: Path) -> AsyncIterator[None]:
    """Serve the API at `api.url`, with a certificate in `folder`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*make_certificate(folder))
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", api.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    api.url = f"https://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield
    finally:
        await runner.cleanup()
