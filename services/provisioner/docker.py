"""Starts and stops the containers of engines and predictors, which Compose has made.

What a container is, is said once, in the compose file. Here nothing is made or removed, so a proxy
before the engine's socket may refuse everything but the three calls below.
"""

import json
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

import aiohttp

from foretell.config.layout import predictor_name
from services.provisioner.driver import DriverFailed

SOCKET = "/var/run/docker.sock"
MAX_ANSWER_BYTES = 8 << 20
_PROJECT, _SERVICE = "com.docker.compose.project", "com.docker.compose.service"
_RUNS = ("running", "restarting", "paused")
_DONE = (204, 304)  # 304: it was so already


class _Container(NamedTuple):
    container_id: str
    service: str
    runs: bool


class DockerDriver:
    """Two containers of a Compose project in each place: the engine's, and its predictor's."""

    def __init__(self, project: str, places: Collection[str], *, socket: str = SOCKET) -> None:
        self._project = project
        self._services = {name: (name, predictor_name(name)) for name in places}
        # Who calls sets the limits of time.
        self._client = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(path=socket), timeout=aiohttp.ClientTimeout()
        )

    async def find(self) -> Mapping[str, bool]:
        running = {each.service for each in await self._containers() if each.runs}
        return {
            name: running.issuperset(services)
            for name, services in self._services.items()
            if not running.isdisjoint(services)
        }

    async def start(self, name: str) -> None:
        containers = await self._containers()
        for service in self._services[name]:
            own = [each for each in containers if each.service == service]
            if not own:
                hint = "docker compose --profile engines create"
                raise DriverFailed(f"{service} has no container: make it with '{hint}'")
            for each in own:
                if not each.runs:
                    await self._order(each, "start")

    async def end(self, name: str) -> None:
        for each in await self._containers():
            if each.service in self._services[name] and each.runs:
                await self._order(each, "stop")  # within the time that the compose file gives it

    async def close(self) -> None:
        await self._client.close()

    async def _containers(self) -> list[_Container]:
        """Those of the project, running or not."""
        labels = [f"{_PROJECT}={self._project}", "com.docker.compose.oneoff=False"]
        filters = quote(json.dumps({"label": labels}))
        body = await self._call("GET", f"/containers/json?all=true&filters={filters}", (200,))
        try:
            return [
                _Container(str(each["Id"]), each["Labels"][_SERVICE], each["State"] in _RUNS)
                for each in json.loads(body)
            ]
        except (KeyError, TypeError, ValueError) as error:
            raise DriverFailed(f"Docker lists no containers: {error!r}") from error

    async def _order(self, container: _Container, what: str) -> None:
        path = f"/containers/{quote(container.container_id, safe='')}/{what}"
        try:
            await self._call("POST", path, _DONE)
        except DriverFailed as error:
            raise DriverFailed(f"Docker does not {what} {container.service}: {error}") from error

    async def _call(self, method: str, path: str, good: tuple[int, ...]) -> bytes:
        url = f"http://docker{path}"
        async with self._client.request(method, url, allow_redirects=False) as answer:
            body = b""
            while more := await answer.content.read(MAX_ANSWER_BYTES + 1 - len(body)):
                body += more
            if len(body) > MAX_ANSWER_BYTES:
                raise DriverFailed("its answer is too long")
            if answer.status not in good:
                raise DriverFailed(f"{answer.status} {_message(body)}")
            return body


def _message(body: bytes) -> str:
    """What Docker says about an error."""
    try:
        found: Any = json.loads(body)
        return str(found["message"])[:500]
    except (KeyError, TypeError, ValueError):
        return "without a reason"
