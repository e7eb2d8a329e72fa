"""Starts paced engines with their predictors, and prepares them for a run."""

import asyncio
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import httpx

from bench.paced.pace import PROFILE, SLOWDOWN_KEY
from bench.report import ROOT
from foretell.tools.check.engine_args import CPU_ENVIRONMENT
from foretell.tools.harness.schedulers import Engines
from foretell.tools.harness.services import Services

MODEL_NAME = "tiny-llama"
SLOWDOWN = 2.0
"""At this pace an engine uses a fifth of a core, so that four of them, with everything in front,
share two cores without delaying each other's steps."""
BLOCK_TOKENS = 128  # of vLLM on a CPU
_AMPLE_BLOCKS = 400
_START_TIMEOUT_S = 400.0
_TIMEOUT_S = 120.0
_ENGINE = "bench.paced.engine"
_WARM_UP_WORDS = (10, 400, 60, 200, 30, 300, 100, 20)
CO_SCHEDULER = f"--scheduler-cls {_ENGINE}.PacedCoScheduler"
"""Flags of an engine that co-schedules offline requests, for `EngineSpec.more_args`."""


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """One engine."""

    seats: int = 8
    """vLLM's `max_num_seqs`."""
    blocks: int = _AMPLE_BLOCKS
    """KV blocks of `BLOCK_TOKENS`."""
    slowdown: float = SLOWDOWN
    more_args: str = ""
    """Further flags of vLLM."""


def engine_args(spec: EngineSpec) -> str:
    """The engine's flags, as `foretell.services.backend` takes them."""
    return (
        "--enforce-eager --dtype float32 --distributed-executor-backend uni --max-model-len 2048 "
        f"--max-num-seqs {spec.seats} --max-num-batched-tokens 512 "
        f"--num-gpu-blocks-override {spec.blocks} --stream-interval 16 "
        "--disable-uvicorn-access-log "
        f"--scheduler-cls {_ENGINE}.PacedScheduler "
        f"--additional-config '{json.dumps({SLOWDOWN_KEY: spec.slowdown})}' {spec.more_args}"
    )


async def start_paced(
    services: Services, specs: Iterable[EngineSpec], python: Path, model: Path
) -> Engines:
    """Start all engines at once with predictors that begin with the profile, and warm them up."""
    os.environ.update(CPU_ENVIRONMENT)  # which the engines inherit
    os.environ["VLLM_SERVER_DEV_MODE"] = "1"  # for /reset_prefix_cache
    os.environ["PYTHONPATH"] = str(ROOT)  # where the engines find their scheduler
    started = await asyncio.gather(
        *(
            services.start_vllm(
                index,
                model=model,
                served_name=MODEL_NAME,
                engine_args=engine_args(spec),
                start_timeout_s=_START_TIMEOUT_S,
                more=(f"--python={python}", f"--profile={PROFILE}"),
            )
            for index, spec in enumerate(specs)
        )
    )
    engines = Engines.of(MODEL_NAME, started, services)
    await warm_up(engines.urls)
    return engines


async def warm_up(urls: Iterable[str]) -> None:
    """Let every engine load its code, and every predictor learn its engine's pace."""
    async with httpx.AsyncClient(trust_env=False, timeout=_TIMEOUT_S) as client:
        for words in (_WARM_UP_WORDS[:1], _WARM_UP_WORDS):
            answers = await asyncio.gather(
                *(
                    client.post(
                        f"{url}/v1/completions",
                        json={"model": MODEL_NAME, "prompt": "a " * count, "max_tokens": 60},
                    )
                    for url in urls
                    for count in words
                )
            )
            for answer in answers:
                answer.raise_for_status()


async def forget_prefixes(urls: Iterable[str]) -> None:
    """Empty the prefix caches of idle engines."""
    async with httpx.AsyncClient(trust_env=False, timeout=_TIMEOUT_S) as client:
        for url in urls:
            (await client.post(f"{url}/reset_prefix_cache")).raise_for_status()
