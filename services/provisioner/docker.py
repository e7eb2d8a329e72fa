"""Starts and stops the containers of engines and predictors, which Compose has created.

Only the compose file describes containers. Nothing is created or removed here, so a proxy in front
of Docker's socket may refuse everything but the three calls below.
"""

import json
from collections.abc import Collection, Mapping
from typing import NamedTuple
from urllib.parse import quote

import aiohttp

from foretell.config.layout import DOCKER_SOCKET, predictor_name
from foretell.services.provisioner.api import call
from foretell.services.provisioner.driver import DriverFailed

_URL = "http://docker/containers"  # the host name is ignored: requests go to the socket
_PROJECT, _SERVICE = "com.docker.compose.project", "com.docker.compose.service"
_RUNS = ("running", "restarting", "paused")
_DONE = (204, 304)  # 304: started or stopped already


class _Container(NamedTuple):
    container_id: str
    service: str
    runs: bool


class DockerDriver:
    """Each place has two containers of a Compose project: an engine and its predictor."""

    last_first = False

    def __init__(
        self, project: str, places: Collection[str], *, socket: str = DOCKER_SOCKET
    ) -> None:
        self._project = project
        self._services = {name: (name, predictor_name(name)) for name in places}
        # No timeout here: callers set it.
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
                await self._order(each, "stop")  # with the grace period of the compose file

    async def publish(self, members: str) -> None:
        """Do nothing: schedulers read the file itself, in the volume of the sockets."""

    async def close(self) -> None:
        await self._client.close()

    async def _containers(self) -> list[_Container]:
        """The containers of the project, running or not."""
        labels = [f"{_PROJECT}={self._project}", "com.docker.compose.oneoff=False"]
        filters = quote(json.dumps({"label": labels}))
        body = await call(self._client, "GET", f"{_URL}/json?all=true&filters={filters}")
        try:
            return [
                _Container(str(each["Id"]), each["Labels"][_SERVICE], each["State"] in _RUNS)
                for each in json.loads(body)
            ]
        except (KeyError, TypeError, ValueError) as error:
            raise DriverFailed(f"Docker lists no containers: {error!r}") from error

    async def _order(self, container: _Container, what: str) -> None:
        url = f"{_URL}/{quote(container.container_id, safe='')}/{what}"
        try:
            await call(self._client, "POST", url, _DONE)
        except DriverFailed as error:
            raise DriverFailed(f"Docker does not {what} {container.service}: {error}") from error
