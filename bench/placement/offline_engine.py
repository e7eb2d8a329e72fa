"""How much sooner does one real vLLM engine answer a file in the blended order?

One real vLLM engine on the CPU, whose steps last as long as a GPU profile says: scheduler, KV cache
with prefix caching and API server are vLLM's own. The file has MMLU's questions behind five solved
ones of their subject, two tokens of answer each, and GSM8K's without a shared prompt, whose answers
are as long as the solutions. It is sent in its own order (one source after the other, subjects
mixed: FCFS), depth-first by shared prefixes (DFS), and by feedback control, which learns how long
answers get from their ends and hears of steps from the engine's snapshots. Orders take turns.
"""

import argparse
import asyncio
import contextlib
import gzip
import json
import os
import re
import shlex
import sys
import time
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
import numpy as np
import psutil  # type: ignore[import-untyped]

from bench.paced.engines import (
    BLOCK_TOKENS,
    MODEL_NAME,
    PROFILE,
    SLOWDOWN,
    EngineSpec,
    engine_args,
    forget_prefixes,
    warm_up,
)
from bench.placement.cluster.watch import Watch, watching
from bench.report import ROOT, Benchmark, Blocks, Numbers, made_by, markdown_table
from bench.stats import plus_minus
from bench.vllm_cpu import ENVIRONMENT
from foretell.config import load_profile
from foretell.latency.tables import profile_step_time
from foretell.model import EngineConfig
from foretell.offline.feed import Feed, Sequential
from foretell.offline.feedback import Feedback, Job
from foretell.offline.lengths import sources
from foretell.offline.tree import PrefixTree, prefix_tree
from foretell.offline.work import Ints, measured_work
from foretell.services.process.folders import free_ports
from foretell.sim.offline import plain, run
from foretell.tools.check.engine_args import LENGTH_KEY
from foretell.tools.harness.schedulers import Engines
from foretell.v1 import snapshot_pb2

BENCH = Benchmark(
    __file__,
    __doc__,
    takes="3 minutes a round",
    needs="`make setup-vllm`, the model of `make run-vllm`, two idle cores",
    paths={"DATA": "folder with offline/"},
    packages=("foretell", "numpy"),
)
SEATS, BLOCKS, STEP_TOKENS, LONGEST = 48, 132, 512, 4096
"""Seats, KV tokens and tokens of a step are the profile's."""
ENGINE = EngineSpec(SEATS, BLOCKS, more_args=f"--max-model-len {LONGEST} --stream-interval 1")
CONFIG = EngineConfig("paced", BLOCK_TOKENS, BLOCKS, SEATS, STEP_TOKENS, LONGEST)
PRIOR_TOKENS = 100.0
AHEAD = 4
"""Requests that may wait in the engine, which is told of others two steps after a seat is left."""
FCFS, DFS, OURS = "FCFS", "DFS", "feedback"
ORDERS = (FCFS, DFS, OURS)
_COUNTERS = {
    "hit_tokens": "vllm:prefix_cache_hits_total",
    "asked_tokens": "vllm:prefix_cache_queries_total",
    "preemptions": "vllm:num_preemptions_total",
}
_CHARACTERS = 4
_FIRST, _VOCABULARY = 100, 3900  # of the tiny model; ids below mean something to it
_LOOK_S, _START_TIMEOUT_S = 0.05, 600.0


@dataclass(frozen=True, slots=True)
class File:
    """Requests in the order in which they are handed in."""

    prompts: list[list[int]]
    outputs: Ints
    tree: PrefixTree

    def feed(self, order: str, ahead: int = 0) -> Feed:
        """What says when each request is sent, to an engine with `ahead` seats more."""
        if order != OURS:
            first = self.tree.first_seen() if order == DFS else range(self.tree.requests)
            return Sequential(map(int, first))
        work = measured_work(profile_step_time(load_profile(PROFILE)))
        unknown = np.zeros_like(self.outputs)
        tree = self.tree
        job = Job(tree, tree.first_seen(), sources(tree), unknown, PRIOR_TOKENS, LONGEST)
        return Feedback(job, work, BLOCKS * BLOCK_TOKENS, overlaps=False, seats=SEATS + ahead)

    def simulated_s(self, order: str) -> float:
        """Seconds until the last answer, by the twin, at the engine's pace."""
        step_s = plain(profile_step_time(load_profile(PROFILE)))
        return SLOWDOWN * run(self.tree, self.outputs, self.feed(order), CONFIG, step_s).seconds

    def bound_s(self) -> float:
        """No order is done sooner: everything computed and read once, each step's weights."""
        work, tree = measured_work(profile_step_time(load_profile(PROFILE))), self.tree
        prefill_s = work.prefill_s(tree.begins, tree.depth).sum()
        outputs = self.outputs.astype(np.float64)
        decode_s = work.decode_s(tree.prompt_tokens, outputs, outputs**2).sum()
        read_s = work.memory_s(tree.prompt_tokens, outputs, outputs**2).sum()
        tokens = float((tree.depth - tree.begins).sum() + outputs.sum())
        steps = max(float(outputs.max()), outputs.sum() / SEATS, tokens / STEP_TOKENS)
        return SLOWDOWN * float(prefill_s + decode_s + read_s + steps * work.weights_s)


def made(data: Path, mmlu: int, gsm8k: int, seed: int) -> File:
    """So many questions of each; `seed` draws them."""
    draws = np.random.default_rng(seed)
    solved: dict[str, str] = {}
    for row in _rows(data / "offline" / "mmlu_dev_40subj.jsonl.gz"):
        solved[row["subject"]] = solved.get(row["subject"], "") + _asked(row) + row["answer"]
    prompts, outputs = [], []
    asked = list(_rows(data / "offline" / "mmlu_test_40subj.jsonl.gz"))
    for place in draws.permutation(len(asked))[:mmlu].tolist():
        prompts.append(_ids(solved[asked[place]["subject"]] + _asked(asked[place])))
        outputs.append(2)
    problems = list(_rows(data / "offline" / "gsm8k_train.jsonl.gz"))
    for place in draws.permutation(len(problems))[:gsm8k].tolist():
        prompts.append(_ids(problems[place]["question"]))
        outputs.append(len(_ids(problems[place]["answer"])))
    return File(prompts, np.array(outputs, np.int64), prefix_tree(prompts, BLOCK_TOKENS))


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def _asked(row: dict[str, str]) -> str:
    options = "".join(f"\n{name}. {row[name]}" for name in "ABCD")
    return f"\n\n{row['question']}{options}\nAnswer: "


def _ids(text: str) -> list[int]:
    """A number for each four characters."""
    places = range(0, len(text), _CHARACTERS)
    pieces = (text[place : place + _CHARACTERS].encode() for place in places)
    return [zlib.crc32(piece) % _VOCABULARY + _FIRST for piece in pieces]


class Driver(Watch):
    """Sends what a feed says, as the engine's snapshots come."""

    def __init__(self, file: File, feed: Feed, session: aiohttp.ClientSession) -> None:
        super().__init__(profile_step_time(load_profile(PROFILE)), 1.0 / SLOWDOWN)
        self._file, self._feed, self._session = file, feed, session
        self._sent = self._ended = self._running = self._made = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def hear(self, snapshot: snapshot_pb2.EngineSnapshot) -> None:
        """A step has ended."""
        super().hear(snapshot)
        self._running = len(snapshot.running.foretell_id)
        self._made += len(snapshot.completed_steps)
        self.send()

    def send(self) -> None:
        """Send what is to be sent now."""
        if self._made:
            self._feed.stepped(self._made)
            self._made = 0
        waiting = max(0, self._sent - self._ended - self._running - AHEAD)
        for request in self._feed.admit(waiting):
            self._sent += 1
            self._tasks.add(asyncio.create_task(self._ask(request)))

    async def answered(self) -> None:
        """Return once all are; an engine that waits for requests tells of no step."""
        self.send()
        while self._ended < len(self._file.prompts):
            await asyncio.sleep(_LOOK_S)
            if self._sent == self._ended:
                self.send()
            for task in [task for task in self._tasks if task.done()]:
                self._tasks.remove(task)
                task.result()

    async def _ask(self, request: int) -> None:
        tokens = int(self._file.outputs[request])
        body = {
            "model": MODEL_NAME,
            "prompt": self._file.prompts[request],
            "max_tokens": LONGEST - len(self._file.prompts[request]) - 1,
            "temperature": 0,
            "vllm_xargs": {LENGTH_KEY: tokens},
        }
        async with self._session.post("/v1/completions", json=body) as answer:
            answer.raise_for_status()
            usage = (await answer.json())["usage"]
        assert usage["completion_tokens"] == tokens, "the engine ends answers where it is told to"
        self._ended += 1
        self._feed.ended(request, tokens)


async def _counters(session: aiohttp.ClientSession) -> Counter[str]:
    async with session.get("/metrics") as answer:
        text = await answer.text()
    found: Counter[str] = Counter()
    for key, name in _COUNTERS.items():
        for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE):
            found[key] += round(float(value))
    return found


async def _served(file: File, order: str, engines: Engines) -> dict[str, Any]:
    """One run."""
    await forget_prefixes(engines.urls)
    timeout = aiohttp.ClientTimeout(total=None)
    # vLLM's server closes connections that were idle for 5 s.
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2.0)
    async with aiohttp.ClientSession(engines.urls[0], connector=connector, timeout=timeout) as http:
        before = await _counters(http)
        driver = Driver(file, file.feed(order, AHEAD), http)
        async with watching([engines.feeds[0]], driver):
            begun_s = time.monotonic()
            await driver.answered()
            seconds = time.monotonic() - begun_s
        told = await _counters(http)
    told.subtract(before)
    return {
        "order": order,
        "seconds": round(seconds, 2),
        "hits": round(told["hit_tokens"] / max(1, told["asked_tokens"]), 4),
        "preemptions": told["preemptions"],
        "steps": driver.steps,
        "lateness": round(driver.lateness, 4),
        "foretold_s": round(file.simulated_s(order), 2),
        "bound_s": round(file.bound_s(), 2),
        "load_1min": round(psutil.getloadavg()[0], 2),
    }


async def _rounds(options: argparse.Namespace) -> list[dict[str, Any]]:
    """All rounds on one engine."""
    runs: list[dict[str, Any]] = []
    with TemporaryDirectory(prefix="foretell-bench-") as name:
        async with _running(Path(name), options.python, options.model) as engines:
            await warm_up(engines.urls)
            for round_ in range(options.rounds):
                file = made(options.data, options.mmlu, options.gsm8k, round_ + 1)
                turn = round_ % len(ORDERS)
                for order in (*ORDERS[turn:], *ORDERS[:turn]):
                    runs.append({"round": round_, **await _served(file, order, engines)})
                    print(runs[-1], flush=True)
    return runs


@asynccontextmanager
async def _running(folder: Path, python: Path, model: Path) -> AsyncIterator[Engines]:
    """The engine alone: nothing places requests, so there is no predictor beside it."""
    (port,) = free_ports("127.0.0.1", 1)
    snapshots = f"ipc://{folder}/engine.ipc"
    command = (
        str(python),
        *("-m", "vllm.entrypoints.openai.api_server", f"--model={model}"),
        *(f"--served-model-name={MODEL_NAME}", "--host=127.0.0.1", f"--port={port}"),
        *shlex.split(engine_args(ENGINE)),
    )
    environment = {
        **os.environ,
        **ENVIRONMENT,
        "VLLM_SERVER_DEV_MODE": "1",  # for /reset_prefix_cache
        "PYTHONPATH": str(ROOT),
        "FORETELL_PLUGIN_SNAPSHOT_ENDPOINT": snapshots,
        "FORETELL_PLUGIN_INSTANCE_ID": "engine-0",
    }
    url = f"http://127.0.0.1:{port}"
    with (folder / "engine.log").open("wb") as log:
        engine = await asyncio.create_subprocess_exec(
            *command, stdout=log, stderr=log, env=environment, start_new_session=True
        )
        try:
            await _serves(engine, url)
            yield Engines(MODEL_NAME, (url,), ("",), (snapshots,))
        except BaseException:
            print((folder / "engine.log").read_text(errors="replace")[-3000:], file=sys.stderr)
            raise
        finally:
            if engine.returncode is None:
                engine.terminate()
                await engine.wait()


async def _serves(engine: asyncio.subprocess.Process, url: str) -> None:
    """Return once it does; RuntimeError where it ends or takes too long."""
    due_s = time.monotonic() + _START_TIMEOUT_S
    async with aiohttp.ClientSession(url) as session:
        while engine.returncode is None and time.monotonic() < due_s:
            with contextlib.suppress(aiohttp.ClientError):
                async with session.get("/health") as answer:
                    if answer.status == 200:
                        return
            await asyncio.sleep(1.0)
    raise RuntimeError("the engine does not serve")


def tables(numbers: Numbers) -> Blocks:
    """A row for each order."""
    runs = numbers["runs"]
    rounds = sorted({one["round"] for one in runs})
    took = {(one["round"], one["order"]): one["seconds"] for one in runs}
    better = {each: min(took[each, FCFS], took[each, DFS]) for each in rounds}
    rows = []
    for order in ORDERS:
        chosen = [one for one in runs if one["order"] == order]
        ratios = [better[each] / took[each, order] for each in rounds]
        rows.append(
            (
                order,
                f"{fmean(one['seconds'] for one in chosen):.1f}",
                plus_minus(ratios, 3) if len(ratios) > 1 else f"{ratios[0]:.3f}",
                f"{fmean(one['hits'] for one in chosen):.1%}",
                f"{fmean(one['preemptions'] for one in chosen):.1f}",
                f"{fmean(one['foretold_s'] for one in chosen):.1f}",
                f"{fmean(one['lateness'] for one in chosen):.1%}",
            )
        )
    bound = fmean(one["bound_s"] for one in runs)
    most = fmean(better[one["round"]] / one["bound_s"] for one in runs)
    rows.append(("*bound*", f"{bound:.1f}", f"{most:.3f}", "", "", "", ""))
    header = (
        "order",
        "last answer after, s",
        "to the better of FCFS and DFS",
        "prefix cache hits",
        "preemptions",
        "by the twin, s",
        "steps late",
    )
    lines = [
        made_by(numbers),
        f"A real vLLM engine on the CPU at {1 / SLOWDOWN:g} times the pace of {PROFILE}: "
        f"{numbers['mmlu']} questions of MMLU, {numbers['gsm8k']} of GSM8K, {len(rounds)} rounds "
        "(other questions in each); ± is half the 95% interval over rounds. *bound*: computing and "
        "reading everything once, and the weights in the least number of steps.\n",
        markdown_table(header, rows),
    ]
    return {"tables": "\n".join(lines)}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--mmlu", type=int, default=600)
    parser.add_argument("--gsm8k", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--python", type=Path, default=ROOT / ".venv-vllm/bin/python")
    parser.add_argument("--model", type=Path, default=ROOT / ".models/tiny-llama")


def measure(options: argparse.Namespace) -> Numbers:
    """All rounds."""
    runs = asyncio.run(_rounds(options))
    return {"mmlu": options.mmlu, "gsm8k": options.gsm8k, "runs": runs}


if __name__ == "__main__":
    BENCH.main(measure, tables, arguments)
