"""Runs `CoScheduler` over vLLM's real scheduler in virtual time: what it schedules, and when."""

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from math import inf
from random import Random
from typing import Any

from foretell.cosched import OfflinePool
from foretell.kernel.step_time import StepTime
from foretell.model import BatchShape, EngineConfig
from foretell.services.backend.vllm.cosched.scheduler import CoScheduler
from foretell.services.backend.vllm.shape import batch_shape
from foretell.services.backend.vllm.steps import Instant
from foretell.tools.verify.engine_loop import VerifiedLoop
from foretell.tools.verify.installed import engine_config
from tests.differential.cosched_twin import MODEL, Ask, Steps


class _Steps:
    """Step times that the planner knows from the start."""

    def step_s(self, shape: BatchShape) -> float:
        return MODEL.step_s(shape)

    def packed(self) -> StepTime:
        return MODEL.packed()

    def scheduled(self, *_: Any) -> None: ...

    def updating(self, *_: Any, **__: Any) -> None: ...

    def updated(self, **_: Any) -> None: ...


@dataclass(slots=True)
class Reserved:
    """A reserve that does not learn."""

    usual_blocks: float

    def observe(self, *_: float) -> None: ...

    def blocks(self, held: float) -> float:
        return max(0.0, self.usual_blocks - held)


@dataclass(slots=True)
class Seen:
    """The outcome of a request."""

    tokens: int = 0
    first_s: float = inf
    last_s: float = inf


@dataclass(slots=True)
class RealEngine:
    """The scheduler class in vLLM, driven as an engine drives it, with step times of a model.

    No offline request becomes the only candidate for being passed over: no snapshot shows that.
    """

    config: EngineConfig
    usual_blocks: float = 0.0
    now_s: float = 0.0
    steps: Steps = field(default_factory=list)
    seen: dict[str, Seen] = field(default_factory=dict)
    loop: VerifiedLoop = field(init=False)
    _ends_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.loop = VerifiedLoop(self.config, CoScheduler)
        planner = self.loop.scheduler.planner
        planner.now = lambda: Instant(self.now_s, self.now_s)
        planner._steps, planner.online.reserve = _Steps(), Reserved(self.usual_blocks)
        planner.waiting.pool = OfflinePool(most_passed_over=inf)
        update = self.loop.scheduler.update_from_output

        def updated(output: Any, *args: Any) -> Any:
            self.now_s = max(self.now_s, self._ends_s.pop(0))
            result = update(output, *args)
            for outputs in result.values():
                for each in outputs.outputs:
                    seen = self.seen[each.request_id]
                    seen.tokens += len(each.new_token_ids)
                    seen.first_s, seen.last_s = min(seen.first_s, self.now_s), self.now_s
            return result

        self.loop.scheduler.update_from_output = updated
        schedule = self.loop.scheduler.schedule

        def scheduled() -> Any:
            output = schedule()
            tokens = output.num_scheduled_tokens
            shape = batch_shape(tokens, self.loop.scheduler.requests)
            seconds = MODEL.step_s(shape) if tokens else 0.0
            begin_s = max([self.now_s, *self._ends_s])
            self._ends_s.append(begin_s + seconds)
            if tokens:
                self.steps.append((self.now_s, list(tokens.items())))
            return output

        self.loop.scheduler.schedule = scheduled

    def add(self, ask: Ask) -> None:
        self.seen[ask.name] = Seen()
        self.loop.add(
            ask.name,
            ask.prompt_tokens,
            ask.max_tokens,
            eos_after=ask.stop_after if ask.stop_after < ask.max_tokens else 0,
            arrival_s=ask.at_s,
            extra_args=ask.fields(),
        )

    def run(self, asks: Iterable[Ask]) -> None:
        """Serve all requests to their ends."""
        coming = sorted(asks, key=lambda ask: ask.at_s)
        for _ in range(50_000):
            if not self.loop.busy:
                if not coming:
                    return
                self.now_s = max(self.now_s, coming[0].at_s)
            while coming and coming[0].at_s <= self.now_s:
                self.add(coming.pop(0))
            self.loop.step()
            assert not self.loop.scheduler.planner._failed


def random_engine(rng: Random, is_async: bool) -> EngineConfig:
    return engine_config(
        total_blocks=rng.choice([40, 80, 400]),
        max_num_seqs=rng.choice([4, 16]),
        max_num_scheduled_tokens=rng.choice([64, 256]),
        long_prefill_token_threshold=rng.choice([0, 0, 32]),
        watermark_ratio=rng.choice([0.0, 0.05]),
        reserve_full_isl=rng.random() < 0.7,
        enable_prefix_caching=False,
        async_scheduling=is_async,
        co_schedules=True,
    )


def traffic(seed: int, count: int, *, told: float, offline: float) -> list[Ask]:
    """`count` random requests; a share `told` of the online ones has targets."""
    rng, now_s, result = Random(seed), 0.0, []
    for index in range(count):
        now_s += rng.choice([0.0, 0.0, rng.expovariate(20.0)])
        most = rng.randint(1, 60)
        is_offline = rng.random() < offline
        usual = (1.0, rng.choice([0.05, 0.02, 0.012]))
        targets = usual if rng.random() < told and not is_offline else (0.0, 0.0)
        if targets[0] and rng.random() < 0.3:
            targets = rng.choice([(0.02, 0.015), (0.5, 0.0), (0.0, 0.03)])
        result.append(
            Ask(
                f"{'offline' if is_offline else 'online'} {index}",
                now_s,
                rng.randint(1, 400),
                most,
                rng.choice([most, most, rng.randint(1, most)]),
                is_offline,
                *targets,
            )
        )
    return result


def served(seed: int, is_async: bool) -> tuple[RealEngine, list[Ask]]:
    """A random engine that has served random requests."""
    rng = Random(seed)
    config = random_engine(rng, is_async)
    asks = traffic(seed, 60, told=rng.choice([0.0, 0.5, 1.0]), offline=0.6)
    real = RealEngine(config, usual_blocks=rng.choice([0.0, 7.5]))
    real.run(asks)
    real.loop.close()
    return real, asks


def recording(seed: int, is_async: bool) -> dict[str, Any]:
    """The data with which `tests/differential/test_recorded_cosched.py` compares the twin."""
    real, asks = served(seed, is_async)
    place = {ask.name: index for index, ask in enumerate(asks)}
    return {
        "config": asdict(real.config),
        "usual_blocks": real.usual_blocks,
        "asks": [asdict(ask) for ask in asks],
        "steps": [
            [at_s, [[place[name], count] for name, count in tokens]] for at_s, tokens in real.steps
        ],
        "ended_s": {name: seen.last_s for name, seen in real.seen.items()},
    }


if __name__ == "__main__":
    json.dump(recording(int(sys.argv[1]), sys.argv[2] == "async"), sys.stdout)
