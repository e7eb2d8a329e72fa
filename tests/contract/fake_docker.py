"""A Docker API on a unix socket that has containers of Compose projects, and can fail or hang."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web


class FakeDocker:
    """Containers by name, behind an API that answers as Docker Engine's API 1.44 does."""

    def __init__(self, project: str = "p") -> None:
        self.project = project
        self.states: dict[str, str] = {}
        self.labels: dict[str, dict[str, str]] = {}
        self.calls: list[str] = []
        self.before: Callable[[str], web.Response | None] = lambda call: None
        """Called before a call takes effect: returns an answer to give instead, or None."""
        self.hangs_at: tuple[int, str] | None = None
        """The order that gets no answer: its number, from 0, and `before` or `after` its effect."""
        self.hung = asyncio.Event()
        """Set once the order that hangs has arrived."""

    def add(
        self, service: str, state: str = "created", *, project: str = "", oneoff: bool = False
    ) -> str:
        """Add a container of a service; return its name."""
        name = f"{project or self.project}-{service}-{oneoff}"
        self.states[name] = state
        self.labels[name] = {
            "com.docker.compose.project": project or self.project,
            "com.docker.compose.service": service,
            "com.docker.compose.oneoff": str(oneoff),
        }
        return name

    def running(self) -> set[str]:
        return {name for name, state in self.states.items() if state == "running"}

    def orders(self) -> list[str]:
        """The calls that request a change."""
        return [call for call in self.calls if call.startswith("POST")]

    async def answer(self, request: web.Request) -> web.Response:
        call = f"{request.method} {request.path}"
        number = len(self.orders()) if request.method == "POST" else -1
        self.calls.append(call)
        await self._hang(number, "before")
        refusal = self.before(call)
        answer = refusal if refusal is not None else self._carry_out(request)
        await self._hang(number, "after")
        return answer

    async def _hang(self, number: int, when: str) -> None:
        if (number, when) == self.hangs_at:
            self.hung.set()
            await asyncio.Event().wait()

    def _carry_out(self, request: web.Request) -> web.Response:
        if request.path == "/containers/json":
            wanted = dict(each.split("=") for each in json.loads(request.query["filters"])["label"])
            found = [
                {"Id": name, "Labels": labels, "State": self.states[name], "Names": [f"/{name}"]}
                for name, labels in self.labels.items()
                if wanted.items() <= labels.items()
                and (request.query.get("all") == "true" or self.states[name] == "running")
            ]
            return web.json_response(found)
        _, _, name, what = request.path.split("/")
        if name not in self.states:
            return web.json_response({"message": f"No such container: {name}"}, status=404)
        new = {"start": "running", "stop": "exited"}[what]
        changed = (self.states[name] == "running") != (new == "running")
        if changed:
            self.states[name] = new
        return web.Response(status=204 if changed else 304)


@asynccontextmanager
async def serving(docker: FakeDocker, socket: Path) -> AsyncIterator[None]:
    """Serve the API on a unix socket."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", docker.answer)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.UnixSite(runner, str(socket)).start()
    try:
        yield
    finally:
        await runner.cleanup()
