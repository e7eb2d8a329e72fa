"""Streams of real vLLM engines break off at any byte and are continued on the other engine.

A proxy before each engine resets the connection of each stream once, after a random number of
bytes. Then processes of engines are killed repeatedly, each during dozens of streams with random
parameters that have begun at different times. `BREAKS_SEED` seeds the draws, `BREAKS_STREAMS` is
the number of streams that break, and `BREAKS_KILLS` that of kills. A failure names the command that
repeats it.
"""

import asyncio
import json
import os
import re
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
import pytest_asyncio

from foretell.services.process.folders import free_ports
from tests.chaos.faulty_proxy import NONE, Fault, FaultyProxy
from tests.chaos.world import instances
from tests.e2e.cluster import Cluster, cluster
from tests.e2e_vllm.test_streams_go_on import (
    DIFFERS,
    ENDED,
    EXACT,
    Answer,
    bodies,
    healthy,
    stream,
    undisturbed,
)
from tests.e2e_vllm.vllm_engines import ENGINE_ARGS, ENGINES, ONE_THREAD_EACH, kill_a_process
from tests.processes import wait_until

pytestmark = [pytest.mark.timeout(3600), pytest.mark.vllm, pytest.mark.asyncio(loop_scope="module")]

MODEL = "tiny"
SEED = int(os.environ.get("BREAKS_SEED", "0"))
STREAMS = int(os.environ.get("BREAKS_STREAMS", "100"))
KILLS = int(os.environ.get("BREAKS_KILLS", "4"))
AT_ONCE = 16
NAMES = [f"engine-{index}" for index in range(ENGINES)]
AT_ONCE_KILLED = 128
"""Streams in progress during kills, on both engines together; one engine has seats for all."""
ROOMY_ARGS = f"{ENGINE_ARGS} --max-num-seqs 256 --num-gpu-blocks-override 800"
RESTART_S = 1000.0
"""An engine's start takes 40 CPU seconds, on cores that may be busy with other work."""
# On a CPU, vLLM's engine core dies when the prompt of a request with a seed is prefilled in chunks:
# `GPUModelRunner` rewinds the generator, and a CPU generator has no offset to set. After a kill
# dozens of prompts arrive at once, and some of them are prefilled in chunks.
NOT_KILLED = frozenset({"seed"})
MOST_BYTES = 40_000
"""About the length of the answers, so that nearly all streams break, some in their last events."""


@dataclass
class Place:
    """A cluster whose engines are behind proxies."""

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
            "args": ROOMY_ARGS,
            "start_timeout_s": RESTART_S,
        }
        models = {MODEL: {"path": os.environ["FORETELL_TINY_MODEL"]}}
        file = run_dir / "file.yaml"
        described = {"models": models, "engines": [engines], "schedulers": {"replicas": 1}}
        file.write_text(json.dumps(described))
        known = instances(run_dir, [proxy.port for proxy in proxies])
        settings = ONE_THREAD_EACH | {"FORETELL_SCHEDULER_INSTANCES": known}
        running = cluster(run_dir, f"--cluster={file}", start_s=RESTART_S, **settings)
        found = await asyncio.to_thread(running.__enter__)
        try:
            yield Place(found, proxies)
        finally:
            await asyncio.to_thread(running.__exit__, None, None, None)
            for proxy in proxies:
                await proxy.stop()


class Breaks:
    """Draws the byte at which each stream's connection is reset, once, on its first engine."""

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
    """How an answer differs from that of an undisturbed engine; "" if it does not."""
    if answer.told() == same.told():
        alike = all(
            answer.logprobs[index] == pytest.approx(logprobs, abs=1e-3)
            for index, logprobs in same.logprobs.items()
        )
        told = alike and len(answer.calls) == len(same.calls)
        return "" if told else f"{what}, has other log probabilities or ids of tool calls"
    pairs = zip(answer.text, same.text, strict=False)
    equal = next((at for at, (a, b) in enumerate(pairs) if a != b), len(answer.text))
    return (
        f"{what}, has {equal} of {len(same.text)} characters right, then "
        f"{answer.text[equal:][:60]!r} for {same.text[equal:][:60]!r}; "
        f"{answer.told()[2:]} for {same.told()[2:]}"
    )


async def continuations(place: Place) -> float:
    """The number of streams that were continued on another engine."""
    text = (
        await asyncio.to_thread(httpx.get, f"{place.running.endpoint}/metrics", timeout=60)
    ).text
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
    different = [each for each in found if each]
    again = f"make test-breaks BREAKS_SEED={SEED} BREAKS_STREAMS={STREAMS}"
    assert not different, "\n".join(
        [*different[:5], f"{len(different)} of {STREAMS} differ; again: {again}"]
    )
    assert continued > STREAMS / 3


@dataclass(eq=False)
class Asked:
    """One requested stream."""

    name: str
    answer: Answer = field(default_factory=Answer)
    lost_after: int = 0
    """Events received before the stream's first engine was killed; 0: it was not killed."""

    @property
    def is_amidst(self) -> bool:
        return bool(self.answer.events) and not (self.answer.ends or self.answer.error)


@dataclass
class Load:
    """Streams of random cases, always `AT_ONCE_KILLED` at a time, while engines are killed."""

    cases: dict[str, dict[str, Any]]
    asked: list[Asked] = field(default_factory=list)
    over: bool = False

    async def keep_asking(self, client: httpx.AsyncClient, rng: Random, pause_s: float) -> None:
        """Stream one case after the other; `pause_s` makes the clients start at different times."""
        await asyncio.sleep(pause_s)
        while not self.over:
            now = Asked(rng.choice(list(self.cases)))
            self.asked.append(now)
            try:
                await stream(client, self.cases[now.name], now.answer)
            except (httpx.HTTPError, AssertionError) as error:  # or another status than 200
                now.answer.error = repr(error)

    def amidst(self, engine: str) -> list[Asked]:
        """The streams in progress that began on an engine and were not on it when it was killed."""
        return [
            each
            for each in self.asked
            if each.is_amidst and each.answer.instance == engine and not each.lost_after
        ]

    def fullest(self) -> str:
        return max(NAMES, key=lambda name: len(self.amidst(name)))

    async def kill(self, place: Place, rng: Random) -> None:
        """SIGKILL a process of the engine with the most streams, at a random token of each, once
        all engines are healthy, so that another one can continue them."""
        await every_engine_serves(place.running)
        enough, more = AT_ONCE_KILLED // 3, rng.randrange(2000)
        await wait_until(lambda: len(self.amidst(self.fullest())) >= enough, RESTART_S)
        events = self.events + more
        await wait_until(lambda: self.events >= events, RESTART_S)
        victim = self.fullest()
        pid = kill_a_process(place.running, victim, rng)
        for each in self.amidst(victim):
            each.lost_after = each.answer.events
        await wait_until(lambda: place.running.component(victim)["pid"] != pid, RESTART_S)

    @property
    def events(self) -> int:
        return sum(each.answer.events for each in self.asked)


def wrong(name: str, answer: Answer, truth: dict[str, Answer]) -> str:
    """What is wrong with an answer whose engine may have been killed; "" if nothing is."""
    if name in EXACT:
        return difference(answer, truth[name], name)
    whole = len(answer.ends) == 1 + len(answer.texts) and not answer.error
    if name in ENDED:  # unless it had ended or had not begun
        told = answer.error in ("engine_lost", 500)  # by the scheduler; by a vLLM without its core
        whole = whole or (told and set(answer.ends) <= {"done"})
    fine = whole and len(answer.heads) == 1
    return "" if fine else f"{name}: {answer.error!r} {answer.ends} {answer.heads}"


async def test_streams_whose_engine_is_killed_are_as_if_it_had_not(place: Place) -> None:
    """SIGKILL of API server, core or worker, during streams with every parameter."""
    began_s, rng = time.monotonic(), Random(SEED)
    truth = await undisturbed(place.running, bodies(MODEL, EXACT))
    span_s, before = time.monotonic() - began_s, await continuations(place)
    cases = bodies(MODEL, EXACT | DIFFERS | ENDED)
    load = Load({name: cases[name] for name in cases if name not in NOT_KILLED})
    async with (
        httpx.AsyncClient(
            base_url=place.running.endpoint, timeout=300, limits=httpx.Limits()
        ) as client,
        asyncio.TaskGroup() as group,
    ):
        for worker in range(AT_ONCE_KILLED):
            pause_s = rng.uniform(0, span_s)
            group.create_task(load.keep_asking(client, Random(f"{SEED} {worker}"), pause_s))
        for _ in range(KILLS):
            await load.kill(place, rng)
            print(summary(load, truth), flush=True)  # noqa: T201
        load.over = True
    print(summary(load, truth), flush=True)  # noqa: T201
    found = [text for each in load.asked if (text := wrong(each.name, each.answer, truth))]
    again = f"make test-breaks BREAKS_SEED={SEED} BREAKS_KILLS={KILLS}"
    assert not found, "\n".join([*found[:5], f"{len(found)} are wrong; again: {again}"])
    lost = sum(bool(each.lost_after) for each in load.asked)
    assert lost >= KILLS * AT_ONCE_KILLED / 4
    assert await continuations(place) - before >= lost / 2


def summary(load: Load, truth: dict[str, Answer]) -> str:
    """One line with the results so far."""
    lost = [each for each in load.asked if each.lost_after]
    events = sorted(each.lost_after for each in lost)
    kinds = [sum(each.name in kind for each in lost) for kind in (EXACT, DIFFERS, ENDED)]
    ended = [each for each in load.asked if not each.is_amidst and each.answer.events]
    bad = [text for each in ended if (text := wrong(each.name, each.answer, truth))]
    return (
        f"seed {SEED}: engines were killed amidst {len(lost)} streams of "
        f"{len({each.name for each in lost})} cases, after {events[0]} to {events[-1]} events, "
        f"{events[len(events) // 2]} in the median; {kinds[0]} had to be exact, {kinds[1]} whole, "
        f"{kinds[2]} whole or ended by an error; of these and {len(ended)} in all that have ended, "
        f"{len(bad)} are wrong {bad[:3] or ''}"
    )


async def every_engine_serves(running: Cluster) -> None:
    """Wait until the scheduler considers every engine healthy; fails after `RESTART_S`."""
    end_s = time.monotonic() + RESTART_S
    while not await asyncio.to_thread(all_serve, running):
        assert time.monotonic() < end_s, running.logs()
        await asyncio.sleep(0.2)


def all_serve(running: Cluster) -> bool:
    """Whether the scheduler reports every engine as healthy; False if it cannot be reached."""
    with suppress(httpx.TransportError):
        return running.ready() and all(healthy(running, name) for name in NAMES)
    return False
