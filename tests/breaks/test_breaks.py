"""Streams of real vLLM engines that break off at any byte, and go on on the other engine.

A proxy before each engine resets the connection of each stream once, after a random number of
bytes. Then processes of engines are killed in mid-answer, again and again. `BREAKS_SEED` says where
streams break, `BREAKS_STREAMS` how many do, `BREAKS_KILLS` how many engines are killed; a failure
names the command that repeats it.
"""

import asyncio
import json
import os
import re
import signal
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import httpx
import pytest
import pytest_asyncio

from services.process.folders import free_ports
from tests.chaos.faulty_proxy import NONE, Fault, FaultyProxy
from tests.chaos.world import instances
from tests.e2e.cluster import Cluster, cluster
from tests.e2e_vllm.test_streams_go_on import EXACT, Answer, bodies, stream, undisturbed
from tests.e2e_vllm.vllm_engines import ENGINE_ARGS, ENGINES, PATIENCE
from tests.processes import descendants, wait_until

pytestmark = [pytest.mark.timeout(3600), pytest.mark.vllm, pytest.mark.asyncio(loop_scope="module")]

MODEL = "tiny"
SEED = int(os.environ.get("BREAKS_SEED", "0"))
STREAMS = int(os.environ.get("BREAKS_STREAMS", "100"))
KILLS = int(os.environ.get("BREAKS_KILLS", "4"))
AT_ONCE = 16
RESTART_S = 400.0
MOST_BYTES = 40_000
"""About the length of the answers, so that nearly all break off, some in their last events."""


@dataclass
class Place:
    """A cluster whose engines stand behind proxies."""

    running: Cluster
    proxies: list[FaultyProxy]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def place() -> AsyncIterator[Place]:
    with tempfile.TemporaryDirectory(prefix="breaks-", dir="/tmp") as folder:
        run_dir = Path(folder)
        port = free_ports("127.0.0.1", ENGINES)[0]
        proxies = [FaultyProxy(port + index) for index in range(ENGINES)]
        for proxy in proxies:
            await proxy.start()
        engines = {
            "engines": ENGINES,
            "port": port,
            "python": os.environ["FORETELL_VLLM_PYTHON"],
            "args": ENGINE_ARGS,
        }
        models = {MODEL: {"path": os.environ["FORETELL_TINY_MODEL"]}}
        file = run_dir / "file.yaml"
        described = {"models": models, "engines": [engines], "schedulers": {"replicas": 1}}
        file.write_text(json.dumps(described))
        known = instances(run_dir, [proxy.port for proxy in proxies])
        settings = PATIENCE | {"FORETELL_SCHEDULER_INSTANCES": known}
        running = cluster(run_dir, f"--cluster={file}", start_s=RESTART_S, **settings)
        found = await asyncio.to_thread(running.__enter__)
        try:
            yield Place(found, proxies)
        finally:
            await asyncio.to_thread(running.__exit__, None, None, None)
            for proxy in proxies:
                await proxy.stop()


class Breaks:
    """Where the connection of each stream is reset: once, on the engine that it begins on."""

    def __init__(self) -> None:
        self.bytes: dict[str, int] = {}

    def __call__(self, head: bytes) -> int:
        found = re.search(rb"x-request-id: (\S+)", head, re.IGNORECASE)
        assert found
        request_id = found[1].decode()
        if request_id in self.bytes:
            return 1 << 40
        self.bytes[request_id] = Random(request_id).randrange(1, MOST_BYTES)
        return self.bytes[request_id]


def difference(answer: Answer, same: Answer, what: str) -> str:
    """How an answer differs from that of an undisturbed engine; "": not at all."""
    if answer.told() == same.told():
        return ""
    pairs = zip(answer.text, same.text, strict=False)
    equal = next((at for at, (a, b) in enumerate(pairs) if a != b), len(answer.text))
    return (
        f"{what}, has {equal} of {len(same.text)} characters right, then "
        f"{answer.text[equal:][:60]!r} for {same.text[equal:][:60]!r}; "
        f"{answer.told()[2:]} for {same.told()[2:]}"
    )


async def continuations(place: Place) -> float:
    """How many streams went on on another engine."""
    text = (await asyncio.to_thread(httpx.get, f"{place.running.endpoint}/metrics")).text
    return sum(
        float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if line.startswith("foretell_continuations_total{")
    )


async def test_streams_that_break_off_at_any_byte_are_as_if_they_had_not(place: Place) -> None:
    cases = bodies(MODEL, EXACT)
    truth = await undisturbed(place.running, cases)
    breaks = Breaks()
    for proxy in place.proxies:
        proxy.set(Fault(breaks_after=breaks))
    room = asyncio.Semaphore(AT_ONCE)

    async def one(client: httpx.AsyncClient, number: int) -> str:
        name, request_id = list(cases)[number % len(cases)], f"breaks-{SEED}-{number}"
        answer = Answer()
        async with room:
            try:
                await stream(client, cases[name], answer, {"x-request-id": request_id})
            except httpx.HTTPError as error:
                answer.error = repr(error)
        cut = breaks.bytes.get(request_id)
        return difference(answer, truth[name], f"stream {number} ({name}), cut after {cut} bytes")

    async with httpx.AsyncClient(base_url=place.running.endpoint, timeout=300) as client:
        found = await asyncio.gather(*(one(client, number) for number in range(STREAMS)))
    for proxy in place.proxies:
        proxy.set(NONE)
    continued = await continuations(place)
    print(f"{STREAMS} streams of seed {SEED}: {continued:.0f} went on on another engine")  # noqa: T201
    wrong = [each for each in found if each]
    again = f"make test-breaks BREAKS_SEED={SEED} BREAKS_STREAMS={STREAMS}"
    assert not wrong, "\n".join([*wrong[:5], f"{len(wrong)} of {STREAMS} differ; again: {again}"])
    assert continued > STREAMS / 3


async def test_streams_whose_engine_is_killed_are_as_if_it_had_not(place: Place) -> None:
    """SIGKILL of API server, core or worker, when random numbers of tokens are there."""
    cases, rng = bodies(MODEL, EXACT), Random(SEED)
    truth = await undisturbed(place.running, cases)
    before = await continuations(place)
    wrong: list[str] = []
    for kill in range(KILLS):
        names, victim = rng.choices(list(cases), k=AT_ONCE), f"engine-{kill % ENGINES}"
        answers = [Answer() for _ in names]
        async with httpx.AsyncClient(base_url=place.running.endpoint, timeout=300) as client:
            sending = asyncio.gather(
                *(stream(client, cases[n], a) for n, a in zip(names, answers, strict=True)),
                return_exceptions=True,
            )
            component = place.running.component(victim)
            await _said(answers, victim, rng.randrange(10, 1000), sending)
            os.kill(rng.choice(engine_processes(component["pid"])), signal.SIGKILL)
            for name, answer, error in zip(names, answers, await sending, strict=True):
                found = difference(answer, truth[name], f"kill {kill}, {name}")
                if isinstance(error, BaseException) or found:
                    wrong.append(f"{found} {error!r}")
        await restarted(place.running, victim, component["pid"])
    went_on = await continuations(place) - before
    print(f"{KILLS} engines killed: {went_on:.0f} streams went on")  # noqa: T201
    again = f"make test-breaks BREAKS_SEED={SEED} BREAKS_KILLS={KILLS}"
    assert not wrong, "\n".join([*wrong[:5], f"{len(wrong)} differ; again: {again}"])
    assert went_on >= KILLS


def engine_processes(server: int) -> list[int]:
    """Pids of an engine's API server, its core and its worker."""
    found = [pid for pid in descendants(server) if "VLLM" in Path(f"/proc/{pid}/comm").read_text()]
    assert found, "vLLM names its processes otherwise"
    return [server, *found]


async def restarted(running: Cluster, name: str, pid: int) -> None:
    """Wait until a component has another pid, and all are up."""

    def is_up() -> bool:
        return running.ready() and running.component(name)["pid"] != pid

    await wait_until(is_up, RESTART_S)


async def _said(
    answers: list[Answer], victim: str, events: int, sending: asyncio.Future[object]
) -> None:
    """Wait until the streams of an engine have had so many events in all, or have all ended."""
    while not sending.done():
        if sum(each.events for each in answers if each.instance == victim) >= events:
            return
        await asyncio.sleep(0.01)
