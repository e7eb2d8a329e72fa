"""Promised ends of simulated batches: as many are kept as announced, and few are far too late."""

from collections.abc import Iterator
from functools import partial
from random import Random
from statistics import median

import pytest

from foretell.batch.promise import CONFIDENCE
from foretell.batch.promises import Promises
from foretell.batch.records import Record, TokenUsage
from foretell.batch.release import Release
from foretell.batch.states import Batch
from foretell.config import load_profile
from foretell.latency.tables import profile_step_time
from foretell.model import OFFLINE_PRIORITY, EngineConfig
from foretell.sim.beside import OfflineRun
from foretell.sim.config import ClusterConfig, SimInstanceConfig
from foretell.workload import Arrival
from tests.sweeps import cases

pytestmark = pytest.mark.timeout(300)

LEARNING = 20
"""The number of batches from which promises learn first."""
PROMPT = 128
TTFT_TARGET_S = 0.05


def cluster() -> ClusterConfig:
    profile = load_profile("H100/Llama-3.1-8B")
    engine = EngineConfig(
        "m",
        profile.block_size_tokens,
        profile.total_blocks,
        profile.max_num_seqs,
        profile.max_num_batched_tokens,
        profile.max_model_len,
        async_scheduling=True,
    )
    return ClusterConfig((SimInstanceConfig(engine, profile_step_time(profile)),))


class Batches:
    """Batches of mixed sizes and lengths beside changing online load, and their promises."""

    def __init__(self, seed: int, count: int, gap_s: float) -> None:
        draws = Random(seed)
        self.kept: list[bool] = []
        self.ratios: list[float] = []
        """Actual time divided by promised time."""
        self._promises = Promises()
        self._running: dict[str, Batch] = {}
        self._promised: dict[str, tuple[float, float]] = {}
        at_s, self._lines = 0.0, list[Arrival]()
        created: list[tuple[float, str, int]] = []
        for number in range(count):
            at_s += draws.uniform(0.2, 1.8) * gap_s
            size = round(10 * 12 ** draws.random())
            created.append((at_s, f"{number}", size))
            for line in range(size):
                tokens = min(400, max(1, round(draws.lognormvariate(4.0, 0.7))))
                name = f"{number}/{line}"
                self._lines.append(Arrival(at_s, PROMPT, tokens, name, priority=OFFLINE_PRIORITY))
        self._tokens = {line.request_id: line.output_tokens for line in self._lines}
        self._run = OfflineRun(
            cluster(),
            list(self._online(draws, at_s)),
            iter(self._lines),
            Release(TTFT_TARGET_S),
            looked=self._look,
            ended=self._ended,
        )
        for when_s, name, size in created:
            self._run.events.at(when_s, partial(self._create, name, size))
        self._run.run(at_s + 600.0)
        assert not self._running

    def _online(self, draws: Random, until_s: float) -> Iterator[Arrival]:
        """Online arrivals whose rate changes every half minute."""
        now_s, number = 0.0, 0
        while now_s < until_s:
            rate, until_next_s = draws.uniform(1.0, 12.0), now_s + 30.0
            while now_s < until_next_s:
                now_s += draws.expovariate(rate)
                number += 1
                yield Arrival(now_s, PROMPT, 64, f"online-{number}")

    def _create(self, name: str, size: int) -> None:
        now_s = self._run.events.now_s
        batch = Batch(name, "", "file", "/v1/completions", "24h", int(now_s), int(now_s) + 86_400)
        self._promises.quote(name, size, "m", now_s)
        if (done_by := self._promises.done_by(name)) is not None:
            self._promised[name] = now_s, done_by
        self._running[name] = batch.validated(size, "m", int(now_s))
        self._promises.renew(list(self._running.values()), [], now_s)

    def _look(self) -> None:
        now_s = self._run.events.now_s
        self._promises.tick(now_s, self._run.in_flight)
        self._promises.renew(list(self._running.values()), [], now_s)

    def _ended(self, request_id: str) -> None:
        now_s, name = self._run.events.now_s, request_id.partition("/")[0]
        usage = TokenUsage(PROMPT, 0, self._tokens[request_id])
        batch = self._running[name]
        self._promises.learn(batch, [Record(True, b"", usage)])
        self._running[name] = batch.answered(1, 0, usage)
        if self._running[name].counts.left:
            return
        del self._running[name]
        self._promises.kept(name, now_s)
        if name in self._promised and int(name) >= LEARNING:
            created_s, done_by_s = self._promised[name]
            self.kept.append(now_s <= done_by_s)
            self.ratios.append((now_s - created_s) / (done_by_s - created_s))


@pytest.mark.sweep
@pytest.mark.parametrize("gap_s", [4.0, 12.0][: cases(2, 1)])
def test_as_many_promises_are_kept_as_was_said(gap_s: float) -> None:
    """With 4 s between two, batches wait for each other; with 12 s most begin when none is left."""
    runs = [Batches(seed, 100, gap_s) for seed in range(3)]
    kept = [each for run in runs for each in run.kept]
    assert len(kept) == 3 * (100 - LEARNING)
    assert sum(kept) / len(kept) == pytest.approx(CONFIDENCE, abs=0.05)
    assert median(ratio for run in runs for ratio in run.ratios) > 0.6, "they are far too late"
