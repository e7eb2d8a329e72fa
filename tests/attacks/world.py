"""A real scheduler process in front of a scripted fake engine."""

import contextlib
import http.client
import json
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from costs import COSTS, OTHERS, Cost

BOUND_S = 2.0
"""Time in which everything that a peer sends must be answered, or its connection closed."""
MOST_MIB = 50.0
"""The most growth of peak memory."""
OTHERS_MS = 250.0
"""The most CPU time until others' `/health` is answered. It is at most 100 ms on an idle machine;
shared processors take more than twice as long for the same work."""
START_S = 60.0
MODEL = "test-model"
_JSON = b'{"id":"1","object":"text_completion","choices":[{"index":0,"text":"ok"}]}'
_GOOD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
    len(_JSON),
    _JSON,
)
_MODELS = json.dumps({"object": "list", "data": [{"id": MODEL, "owned_by": "vllm"}]}).encode()
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3})[^\r\n]*\r\n")


class FakeEngine:
    """Answers one request with `script`, and every other one correctly."""

    def __init__(self) -> None:
        self.script: Sequence[bytes] | None = None
        self.then_closes = False
        self.hold = threading.Event()
        """While it is unset, no answer begins."""
        self.hold.set()
        self.requests: list[int] = []
        """The number of the connection of each generation request."""
        self._server = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port: int = self._server.getsockname()[1]
        self._connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self._server.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._connections += 1
                arguments = (client, self._connections)
                threading.Thread(target=self._serve, args=arguments, daemon=True).start()

    def _serve(self, client: socket.socket, number: int) -> None:
        with client, contextlib.suppress(OSError), client.makefile("rb") as reader:
            while line := reader.readline():
                length = 0
                while (header := reader.readline().strip()) != b"":
                    if header.lower().startswith(b"content-length:"):
                        length = int(header.split(b":")[1])
                reader.read(length)
                if not self._answer(client, line, number):
                    return

    def _answer(self, client: socket.socket, line: bytes, number: int) -> bool:
        if not line.startswith(b"POST"):
            body = _MODELS if b"/v1/models" in line else b""
            client.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
            return True
        self.requests.append(number)
        self.hold.wait(START_S)
        script, closes = self.script, self.then_closes
        if script is None:
            client.sendall(_GOOD)
            return True
        for part in script:
            client.sendall(part)
            if len(script) < 10:
                time.sleep(0.02)
        return not closes


class World:
    """The scheduler and engine that vectors run against."""

    def __init__(
        self, child: subprocess.Popen[bytes], port: int, engine: FakeEngine, folder: Path
    ) -> None:
        self.child, self.port, self.engine = child, port, engine
        self.tls_port = 0
        self._others = folder / OTHERS
        self.picker = str(folder / "picker")
        """The path of the picker's socket."""

    def connect(self, timeout_s: float = BOUND_S) -> socket.socket:
        """Open a client's connection."""
        sock = socket.create_connection(("127.0.0.1", self.port), timeout=timeout_s)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def ask(
        self, method: str, path: str, body: bytes | Iterator[bytes] = b"", **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        """Send a request over a new connection; return status, headers and body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=START_S)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            connection.request(method, path, body or None, named)
            answer = connection.getresponse()
            told = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, told, answer.read()
        finally:
            connection.close()

    def generate(
        self, *, stream: bool = False, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        """Send a good completion request."""
        body = json.dumps({"model": MODEL, "prompt": "x", "stream": stream}).encode()
        return self.ask("POST", "/v1/completions", body, **headers)

    @contextlib.contextmanager
    def bounded(self, name: str, most_mib: float = MOST_MIB) -> Iterator[None]:
        """Check that others are served soon during the block, and that memory stays bounded."""
        before_mib, began_s = self._memory_mib("VmRSS"), time.monotonic()
        with contextlib.suppress(OSError):
            Path(f"/proc/{self.child.pid}/clear_refs").write_text("5")  # resets the peak
        begun_bytes = self._others.stat().st_size
        yield
        lasted_s = time.monotonic() - began_s
        assert self.ask("GET", "/health")[0] == 200
        cpu_s, wall_s = self._told_of_others(begun_bytes)
        grown_mib = self._memory_mib("VmHWM") - before_mib
        cost = Cost(name, 1e3 * cpu_s, 1e3 * wall_s, grown_mib, lasted_s)
        COSTS.append(cost)
        assert cost.mib <= most_mib, cost
        assert cost.cpu_ms <= OTHERS_MS, cost
        assert self.child.poll() is None

    def _told_of_others(self, begun_bytes: int) -> tuple[float, float]:
        """The most CPU and wall time of others' answers from `begun_bytes` to one requested now."""
        began_bytes, until_s = self._others.stat().st_size, time.monotonic() + START_S
        while (told := self._others.read_bytes()[begun_bytes:]).count(
            b"\n", began_bytes - begun_bytes
        ) < 2:
            assert time.monotonic() < until_s
            time.sleep(0.002)
        each = [tuple(map(float, line.split())) for line in told.splitlines()]
        return max(cpu_s for cpu_s, _ in each), max(wall_s for _, wall_s in each)

    def _memory_mib(self, name: str) -> float:
        text = Path(f"/proc/{self.child.pid}/status").read_text()
        return (
            next(int(each.split()[1]) for each in text.splitlines() if each.startswith(name)) / 1024
        )


def exchanged(
    sock: socket.socket,
    sent: Sequence[bytes],
    expected: int,
    *,
    half_closed: bool = False,
    settle_s: float = 0.05,
    bound_s: float = BOUND_S,
) -> tuple[tuple[int, ...], str]:
    """Send the parts; return the statuses, and "closed" or "kept" for the connection.

    It waits up to `bound_s` for `expected` answers, or for the end if none are expected.
    """
    got = b""
    until_s = time.monotonic() + bound_s
    try:
        for part in sent:
            sock.sendall(part)
            if len(sent) < 10:
                time.sleep(0.01)
        if half_closed:
            sock.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # closed already: earlier answers may still be read
    while True:
        statuses = _statuses(got)
        is_whole = 0 < expected <= len(statuses)
        left_s = until_s - time.monotonic()
        sock.settimeout(max(0.001, min(left_s, settle_s) if is_whole else left_s))
        try:
            data = sock.recv(1 << 16)
        except TimeoutError:
            return statuses, "kept"
        except OSError:
            return statuses, "closed"
        if not data:
            return statuses, "closed"
        got += data


def _statuses(text: bytes) -> tuple[int, ...]:
    """The statuses of the answers in `text`, without interim ones, which depend on when a body
    comes. The test bodies do not look like status lines."""
    return tuple(int(each) for each in _STATUS.findall(text) if not each.startswith(b"1"))


@contextlib.contextmanager
def scheduler(
    folder: Path, engine: FakeEngine, *flags: str, prefix: Sequence[str] = ()
) -> Iterator[World]:
    """Run a scheduler's process; `prefix` is a command that starts it, such as `prlimit`."""
    ready = folder / "ready.json"
    instances = [{"instance_id": "engine-0", "url": f"http://127.0.0.1:{engine.port}"}]
    asked = (
        *("--port", "0", "--engine-wait-s", "0", "--instances", json.dumps(instances)),
        *("--picker", f"unix:{folder}/picker", *flags),
    )
    with _process(folder, "one_attempt.py", *asked, prefix=prefix) as child:
        facts = json.loads(ready.read_text())
        world = World(child, int(facts["url"].rpartition(":")[2]), engine, folder)
        world.tls_port = int(facts.get("https_url", ":0").rpartition(":")[2])
        until_s = time.monotonic() + START_S
        while world.ask("GET", "/ready")[0] != 200:
            assert time.monotonic() < until_s
            time.sleep(0.02)
        yield world


@contextlib.contextmanager
def batch_service(folder: Path, engine: FakeEngine) -> Iterator[World]:
    """A batch service's process behind a scheduler, through which clients reach it."""
    (folder / "scheduler").mkdir()
    where = f"unix:{folder}/batch/socket"
    with scheduler(folder / "scheduler", engine, "--batches", where) as front:
        url = f"http://127.0.0.1:{front.port}"
        asked = ("--listen", where, "--folder", str(folder / "batches"), "--schedulers", url)
        with _process(folder, "one_batch.py", *asked) as child:
            yield World(child, front.port, engine, folder)


@contextlib.contextmanager
def _process(
    folder: Path, name: str, *flags: str, prefix: Sequence[str] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process until it is ready; it must log no traceback until it ends."""
    ready = folder / "ready.json"
    script = str(Path(__file__).with_name(name))
    command = [*prefix, sys.executable, script, "--ready-file", str(ready), *flags]
    with (folder / "log").open("wb") as log, subprocess.Popen(command, stderr=log) as child:
        try:
            until_s = time.monotonic() + START_S
            while not ready.exists():
                assert child.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < until_s
                time.sleep(0.02)
            yield child
            log_text = (folder / "log").read_text()
            assert "Traceback" not in log_text, log_text
        finally:
            child.terminate()
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                child.kill()
