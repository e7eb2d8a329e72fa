"""A Kubernetes API server that lists and watches pods or EndpointSlices.

Its objects are the official client's models. Tests can make it cut off answers after some bytes,
forget past versions, and send wrong answers.
"""

import asyncio
import json
from bisect import bisect_right
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from kubernetes.client import ApiClient
from kubernetes.client.models import (
    V1Container,
    V1ContainerPort,
    V1ListMeta,
    V1ObjectMeta,
    V1Pod,
    V1PodCondition,
    V1PodSpec,
    V1PodStatus,
    V1Status,
)

_CLIENT = ApiClient()


def as_json(model: Any) -> Any:
    return _CLIENT.sanitize_for_serialization(model)


def pod(
    name: str,
    address: str = "10.0.0.1",
    *,
    ready: bool = True,
    terminating: bool = False,
    ports: dict[str, int] | None = None,
    models: str = "",
) -> dict[str, Any]:
    """A pod with an engine, as the API shows it."""
    named = {"http": 8000, "grpc": 50051} if ports is None else ports
    found: dict[str, Any] = as_json(
        V1Pod(
            metadata=V1ObjectMeta(
                name=name,
                labels={"app": "engine"},
                annotations={"foretell/models": models} if models else None,
                deletion_timestamp="2026-01-01T00:00:00Z" if terminating else None,
            ),
            spec=V1PodSpec(
                containers=[
                    V1Container(
                        name="engine",
                        ports=[V1ContainerPort(name=n, container_port=p) for n, p in named.items()],
                    )
                ]
            ),
            status=V1PodStatus(
                phase="Running",
                pod_ip=address,
                conditions=[V1PodCondition(type="Ready", status="True" if ready else "False")],
            ),
        )
    )
    return found


class ApiServer:
    """The resources of one kind, with the history of their changes."""

    def __init__(self) -> None:
        self.url = ""
        self.objects: dict[str, dict[str, Any]] = {}
        self.requests: list[dict[str, str]] = []
        """The query parameters of each request, in order."""
        self.cuts: Iterable[int] = ()
        """The next answers are cut off after these numbers of bytes; those after them are whole."""
        self.answers: list[bytes] = []
        """Bodies of the next answers, instead of the right ones."""
        self.statuses: list[int] = []
        """Statuses of the next answers."""
        self.bookmarks = True
        self.longest_watch_s = 60.0
        self._history: list[tuple[int, bytes]] = []
        self._version = 1
        self._forgotten = self._lost = 0
        self._lists: dict[str, dict[str, dict[str, Any]]] = {}
        self._changed = asyncio.Event()
        self._open: set[asyncio.StreamWriter] = set()

    def put(self, found: dict[str, Any]) -> None:
        """Add or change an object."""
        name = found["metadata"]["name"]
        self._tell("MODIFIED" if name in self.objects else "ADDED", found)
        self.objects[name] = found

    def remove(self, name: str) -> None:
        self._tell("DELETED", self.objects.pop(name))

    def pass_by(self) -> None:
        """Change something that is not watched, so that the version moves on."""
        self._version += 1
        if self.bookmarks:
            metadata = V1ObjectMeta(resource_version=str(self._version))
            self._record("BOOKMARK", as_json(V1Pod(metadata=metadata)))

    def forget(self) -> None:
        """Compact the history: older watches, and watches that have not got all yet, get 410."""
        if self._history:
            self._lost = self._history[-1][0]
        self._version += 1
        self._forgotten = self._version
        self._history.clear()

    def cut_all(self) -> None:
        """Cut off every answer in progress."""
        for writer in self._open:
            writer.transport.abort()

    def _tell(self, kind: str, found: dict[str, Any]) -> None:
        self._version += 1
        found["metadata"]["resourceVersion"] = str(self._version)
        self._record(kind, found)

    def _record(self, kind: str, found: dict[str, Any]) -> None:
        line = json.dumps({"type": kind, "object": found}).encode() + b"\n"
        self._history.append((self._version, line))
        self._changed.set()
        self._changed = asyncio.Event()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield
        finally:
            server.close()
            self.cut_all()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        self.cuts = iter(self.cuts)
        left = next(self.cuts, -1)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            query = parse_qs(urlsplit(head.split()[1]).query)
            asked = {name: values[0] for name, values in query.items()}
            self.requests.append(asked)
            status = self.statuses.pop(0) if self.statuses else 200
            start = f"HTTP/1.1 {status} X\r\ntransfer-encoding: chunked\r\n\r\n".encode()
            left = await self._send(writer, start, left)
            async for part in self._body(asked, status):
                chunk = b"%x\r\n%b\r\n" % (len(part), part)
                left = await self._send(writer, chunk, left)
            await self._send(writer, b"0\r\n\r\n", left)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._open.discard(writer)
            writer.close()

    async def _send(self, writer: asyncio.StreamWriter, data: bytes, left: int) -> int:
        """Send at most `left` bytes (below 0: no limit); return how many may still be sent."""
        if writer.transport.is_closing():
            raise ConnectionResetError
        if 0 <= left < len(data):
            writer.write(data[:left])
            # abort() would discard what was written.
            await writer.drain()
            writer.close()
            raise ConnectionResetError
        writer.write(data)
        await writer.drain()
        return left - len(data) if left >= 0 else left

    async def _body(self, asked: dict[str, str], status: int) -> AsyncIterator[bytes]:
        if self.answers:
            yield self.answers.pop(0)
        elif status != 200:
            yield json.dumps(as_json(V1Status(code=status, message="wrong"))).encode()
        elif "watch" not in asked:
            yield self._page(asked)
        else:
            async for line in self._events(int(asked["resourceVersion"])):
                yield line

    def _page(self, asked: dict[str, str]) -> bytes:
        """One page of a list; all pages show the objects at the time of the first page."""
        version, _, after = asked.get("continue", f"{self._version}/").partition("/")
        if after and int(version) < self._forgotten:
            gone = V1Status(code=410, reason="Expired", message="too old")
            return json.dumps(as_json(gone)).encode()
        found = self._lists.setdefault(version, dict(self.objects))
        names = [name for name in sorted(found) if name > after]
        page, rest = names[: int(asked["limit"])], names[int(asked["limit"]) :]
        metadata = V1ListMeta(
            resource_version=version, _continue=f"{version}/{page[-1]}" if rest else None
        )
        items = [found[name] for name in page]
        return json.dumps({"metadata": as_json(metadata), "items": items}).encode()

    async def _events(self, version: int) -> AsyncIterator[bytes]:
        ends = asyncio.get_running_loop().time() + self.longest_watch_s
        oldest = self._forgotten
        while True:
            if version < max(oldest, self._lost):
                gone = as_json(V1Status(code=410, reason="Expired", message="too old"))
                yield json.dumps({"type": "ERROR", "object": gone}).encode() + b"\n"
                return
            changed = self._changed
            known = bisect_right(self._history, version, key=lambda each: each[0])
            for at, line in self._history[known:]:
                version = at
                yield line
            try:
                async with asyncio.timeout_at(ends):
                    await changed.wait()
            except TimeoutError:
                return


def make_credentials(folder: Path, authority: Path) -> Path:
    """Write the service account's files that a pod has mounted; return their folder."""
    folder.mkdir()
    (folder / "token").write_text("first\n")
    (folder / "namespace").write_text("llm")
    (folder / "ca.crt").write_bytes(authority.read_bytes())
    return folder
