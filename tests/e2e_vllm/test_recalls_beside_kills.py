"""Requests that wait for a seat of a real engine are recalled, while an engine is killed.

Two engines with two seats each, at a GPU's pace, serve two scheduler replicas. The replicas' logs,
the engines' logs and the clients must agree on the outcome of each request. `RECALLS_SEED` seeds
all draws; a failure names the command that repeats it.
"""

import asyncio
import json
import os
import re
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import httpx
import pytest

from bench.paced.engines import EngineSpec, engine_args
from bench.paced.pace import PROFILE
from foretell.tools.check.engine_args import CPU_ENVIRONMENT as ENVIRONMENT
from tests.chaos.clients import Asked, Seen, requests, send
from tests.e2e.cluster import Cluster, cluster, until
from tests.e2e_vllm.vllm_engines import ENGINES, ONE_THREAD_EACH, kill_a_process, model_of

pytestmark = [pytest.mark.timeout(900), pytest.mark.vllm]

MODEL = "tiny"
SEED = int(os.environ.get("RECALLS_SEED", "0"))
REPLICAS = ("scheduler-0", "scheduler-1")
NAMES = [f"engine-{index}" for index in range(ENGINES)]
SPEC = EngineSpec(seats=2, more_args="--scheduling-policy priority --enable-log-requests")
BURST = 30
"""Requests to each replica; both together get fifteen times as many as there are seats."""
KNOWN = 120
"""Requests after which a scheduler knows which ones are large."""
LARGE, LARGE_TOKENS, SHORT_TOKENS = 3, 200, 8
FEW, MANY, AT_ONCE = 6, 20, 8
"""Short requests in progress while large ones arrive, and after that; and how many come together.
Between these a scheduler has time for reviews, however busy its cores are."""
WAIT_S = 400.0
_ATTEMPT = re.compile(r"APIServer pid=(\d+)\).* (Added|Aborted) request\S* (\w*cmpl-(\w{32})\S*)\.")
"""A vLLM log line: API server's pid, Added or Aborted, vLLM's id of the attempt, request's id."""


@dataclass
class Place:
    """A cluster, and all requests sent to it."""

    running: Cluster
    undisturbed: Cluster
    """Another cluster, whose engines have not been killed."""
    asked: list[tuple[Asked, Seen]] = field(default_factory=list)
    killed: list[int] = field(default_factory=list)
    """Pids of the API servers of killed engines."""

    def url(self, name: str) -> str:
        return str(self.running.component(name)["address"])

    def counted(self, replica: str, *metrics: str) -> int:
        """The sum of these metrics of a replica over all labels."""
        lines = httpx.get(f"{self.url(replica)}/metrics", timeout=60).text.splitlines()
        names = tuple(f"{metric}{{" for metric in metrics)
        return sum(int(float(each.split()[-1])) for each in lines if each.startswith(names))

    def recalls(self) -> list[int]:
        return [self.counted(each, "foretell_recalls_total") for each in REPLICAS]

    def outstanding(self, replica: str, engine: str) -> int:
        """The number of requests that a replica has outstanding on an engine."""
        status = httpx.get(f"{self.url(replica)}/status", timeout=60).json()
        return sum(i["outstanding"] for i in status["instances"] if i["instance_id"] == engine)

    def attempts(self, replica: str) -> list[dict[str, Any]]:
        """The ended attempts in a replica's request log."""
        path = self.running.run_dir / f"{replica}.requests.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]

    async def ask(self, client: aiohttp.ClientSession, asked: Asked) -> None:
        self.asked.append((asked, await send(client, asked, retries=False)))

    def kill(self, victim: str, rng: Random) -> None:
        """SIGKILL a process of an engine."""
        self.killed.append(kill_a_process(self.running, victim, rng))


@pytest.fixture(scope="module")
def place(running: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    run_dir = tmp_path_factory.mktemp("recalls")
    engines = {
        "kind": "vllm",
        "engines": ENGINES,
        "python": os.environ["FORETELL_VLLM_PYTHON"],
        "profile": PROFILE,
        "args": engine_args(SPEC),
        "start_timeout_s": WAIT_S / 2,  # a hanging start is repeated while requests wait
    }
    models = {MODEL: {"path": os.environ["FORETELL_TINY_MODEL"]}}
    schedulers = {"replicas": len(REPLICAS)}
    file = run_dir / "wanted.yaml"
    file.write_text(json.dumps({"models": models, "engines": [engines], "schedulers": schedulers}))
    settings = ONE_THREAD_EACH | ENVIRONMENT | {"PYTHONPATH": str(Path(__file__).parents[2])}
    with cluster(run_dir, f"--cluster={file}", start_s=WAIT_S, **settings) as found:
        yield Place(found, running)


def client(url: str) -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    return aiohttp.ClientSession(
        url, connector=connector, timeout=aiohttp.ClientTimeout(total=WAIT_S)
    )


async def until_true(condition: Callable[[], object], deadline_s: float) -> None:
    """Wait for `condition` in a thread, since it may ask schedulers, while all clients go on."""
    end_s = time.monotonic() + deadline_s
    while not await asyncio.to_thread(condition):
        assert time.monotonic() < end_s, "the condition did not come true in time"
        await asyncio.sleep(0.02)


@contextmanager
def logs_in_failures(running: Cluster) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        error.add_note(f"{running.state()}\n{running.logs()}")
        raise


@asynccontextmanager
async def seats_taken(url: str) -> AsyncIterator[None]:
    """Fill all seats of an engine with requests that bypass the schedulers."""
    body = {"model": MODEL, "prompt": "x", "max_tokens": 2000, "ignore_eos": True, "priority": -9}
    has_begun = asyncio.Event()

    async def hold(strangers: aiohttp.ClientSession) -> None:
        while True:
            async with strangers.post("/v1/completions", json=body | {"stream": True}) as answer:
                async for _ in answer.content:
                    has_begun.set()

    async with client(url) as strangers:
        holding = [asyncio.create_task(hold(strangers)) for _ in range(SPEC.seats)]
        await has_begun.wait()
        yield
        for each in holding:
            each.cancel()
        await asyncio.gather(*holding, return_exceptions=True)


async def recalled_beside_a_kill(place: Place) -> None:
    """Take the seats of the engine with the longest queue. Its waiting requests are recalled and
    served by the other engine, or by its replacement."""
    rng, cases = Random(SEED), requests(MODEL, SEED)

    def with_engines() -> dict[str, int]:
        return {name: sum(place.outstanding(each, name) for each in REPLICAS) for name in NAMES}

    async with (
        client(place.url(REPLICAS[0])) as first,
        client(place.url(REPLICAS[1])) as second,
        asyncio.timeout(WAIT_S),
        AsyncExitStack() as others,
        asyncio.TaskGroup() as group,
    ):
        for _ in range(BURST):
            group.create_task(place.ask(first, rng.choice(cases)))
            group.create_task(place.ask(second, rng.choice(cases)))
        await until_true(lambda: sum(with_engines().values()) >= BURST, WAIT_S)
        counts = await asyncio.to_thread(with_engines)
        victim, held = sorted(NAMES, key=counts.__getitem__)
        await others.enter_async_context(seats_taken(place.url(held)))
        await until_true(lambda: any(place.recalls()), WAIT_S / 2)
        place.kill(victim, rng)
    await until_true(place.running.ready, WAIT_S)


def test_requests_called_back_beside_a_killed_engine_end_once_and_right(place: Place) -> None:
    with logs_in_failures(place.running):
        asyncio.run(recalled_beside_a_kill(place))
        check(place)


async def large_ones_overtaken_beside_a_kill(place: Place) -> None:
    """Send short requests until the large ones have ended: without a bound these never began."""
    rng, cases = Random(SEED), requests(MODEL, SEED)
    most, under_way, asked = FEW, set[asyncio.Task[None]](), 0
    kills = len(place.killed)

    async def ask(tokens: int) -> None:
        case = rng.choice(cases)
        await place.ask(replica, Asked(case.path, case.body | {"max_tokens": tokens}))

    async def keep_asking(group: asyncio.TaskGroup, last: Callable[[], bool]) -> None:
        nonlocal asked
        while not last():
            if len(under_way) <= most - min(most, AT_ONCE) // 2:
                new = [group.create_task(ask(SHORT_TOKENS)) for _ in range(most - len(under_way))]
                under_way.update(new)
                asked += len(new)
            ended, _ = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
            under_way.difference_update(ended)

    async def keep_asking_large() -> None:
        """Send large requests while few wait, so that they go last; then send many short ones."""
        nonlocal most
        while len(place.killed) == kills:
            most = FEW
            await until_true(lambda: len(under_way) <= FEW, WAIT_S)
            large = [asyncio.create_task(ask(LARGE_TOKENS)) for _ in range(LARGE)]
            most = MANY
            await asyncio.gather(*large)

    def is_overdue() -> bool:
        """Whether a request that had been put last was recalled and sent again before the others.
        (A request recalled because another engine is free sooner stays last.)"""
        return any(each["priority"] == -1 for each in place.attempts(REPLICAS[0]))

    async with (
        asyncio.timeout(WAIT_S),
        client(place.url(REPLICAS[0])) as replica,
        asyncio.TaskGroup() as group,
    ):
        await keep_asking(group, lambda: asked >= KNOWN)
        large = group.create_task(keep_asking_large())
        group.create_task(keep_asking(group, large.done))
        await until_true(is_overdue, WAIT_S)
        place.kill(rng.choice(NAMES), rng)


def test_large_requests_are_overtaken_for_a_while_beside_a_killed_engine(place: Place) -> None:
    with logs_in_failures(place.running):
        asyncio.run(large_ones_overtaken_beside_a_kill(place))
        check(place)
    attempts = place.attempts(REPLICAS[0])
    last = [each for each in attempts if each["priority"] == 1]
    assert any(is_overtaken(large, each) for large in last for each in attempts), last
    overdue = {each["request_id"] for each in attempts if each["priority"] == -1}
    assert overdue & {each["request_id"] for each in last}


def is_overtaken(attempt: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether `other` came to the same engine later, and began before `attempt` began or ended."""
    is_later = attempt["placed_unix_s"] < other["placed_unix_s"]
    first_unix_s = other["placed_unix_s"] + (other["ttft_s"] or WAIT_S)
    if attempt["ttft_s"] is None:
        until_unix_s = attempt["time_unix_s"]
    else:
        until_unix_s = attempt["placed_unix_s"] + attempt["ttft_s"]
    is_here = attempt["instance_id"] == other["instance_id"]
    return is_here and is_later and first_unix_s < until_unix_s


# --- the outcome of each request ---


def check(place: Place) -> None:
    """Check that every request ended once, with the right answer."""
    only = {next(iter(seen.ids), ""): seen for _, seen in place.asked}
    truth = asyncio.run(answers(place.undisturbed, [asked for asked, _ in place.asked]))
    found = [
        f"{seen} for {same}"
        for (_, seen), same in zip(place.asked, truth, strict=True)
        if told(seen) != told(same)
    ]
    requests_made = {each.partition("-")[2] for each in only}
    assert len(requests_made) == len(place.asked) or found
    found += unlike_schedulers(place, requests_made) + unlike_engines(place, requests_made)
    print(summary(place))  # noqa: T201
    again = f"RECALLS_SEED={SEED} make test-vllm-engines"
    assert not found, "\n".join([*found[:5], f"{len(found)} mistakes; again: {again}"])


def told(seen: Seen) -> tuple[object, ...]:
    return seen.text, seen.ends, seen.completion_tokens, len(seen.ids), seen.error


async def answers(undisturbed: Cluster, asked: list[Asked]) -> list[Seen]:
    """The answers of an engine that is not killed."""
    model = model_of(undisturbed)
    async with client(undisturbed.component(NAMES[0])["address"]) as engine:
        return await asyncio.gather(
            *(
                send(engine, Asked(each.path, each.body | {"model": model}), retries=False)
                for each in asked
            )
        )


def unlike_schedulers(place: Place, made: set[str]) -> list[str]:
    """Requests that did not end once in one replica, and attempts that ended without a reason."""
    reasons = ("foretell_recalls_total", "foretell_retries_total", "foretell_continuations_total")

    def mistakes() -> list[str]:
        found, ended = [], Counter[str]()
        owners = defaultdict[str, set[str]](set)
        for replica in REPLICAS:
            attempts = place.attempts(replica)
            ended.update(each["request_id"] for each in attempts if each["finished"])
            for each in attempts:
                owners[each["request_id"]].add(replica)
            given_up = sum(not each["finished"] for each in attempts)
            counted = place.counted(replica, *reasons)
            if given_up != counted:
                found.append(f"{replica} counts {counted} attempts given up, of {given_up}")
        found += [f"{each} ended {ended[each]} times" for each in made if ended[each] != 1]
        return found + [f"{each} is of {of}" for each, of in owners.items() if len(of) > 1]

    with suppress(AssertionError):
        until(lambda: not mistakes(), 30.0)  # lines are written after the answers
    return mistakes()


def unlike_engines(place: Place, made: set[str]) -> list[str]:
    """Requests that engines did not run to the end exactly once, except on killed engines."""
    logs = [place.running.run_dir / f"{name}.engine.log" for name in NAMES]
    lines = {each for log in logs for each in _ATTEMPT.findall(log.read_text())}
    aborted = {attempt for _, what, attempt, _ in lines if what == "Aborted"}
    ran = [each for each in lines if each[1] == "Added" and each[2] not in aborted]
    killed = {request for pid, _, _, request in ran if int(pid) in place.killed}
    whole = Counter(request for pid, _, _, request in ran if int(pid) not in place.killed)
    return [
        f"{each} was run {whole[each]} times to its end"
        for each in made
        if whole[each] > 1 or not (whole[each] or each in killed)
    ]


def summary(place: Place) -> str:
    return (
        f"seed {SEED}: {len(place.asked)} requests, {place.recalls()} recalls, "
        f"{len(place.killed)} kills, {[len(place.attempts(each)) for each in REPLICAS]} attempts"
    )
