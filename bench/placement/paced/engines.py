"""Starts the paced engines with their predictors, and readies them for a run."""

import asyncio
import json
import os
from pathlib import Path

import httpx

from bench.placement.cluster.processes import Engines, Setup
from bench.placement.paced.settings import EngineSpec, Setting
from bench.processes import Services
from bench.report import ROOT
from bench.vllm_cpu import ENVIRONMENT
from services.process.memory_log import SHARED_MEMORY

MODEL_NAME = "tiny-llama"
_START_TIMEOUT_S = 400.0
_TIMEOUT_S = 120.0
_ENGINE = "bench.placement.paced.engine"
_WARM_UP_WORDS = (10, 400, 60, 200, 30, 300, 100, 20)


def engine_args(spec: EngineSpec) -> str:
    """The engine's flags, as `services.backend` takes them."""
    return (
        "--enforce-eager --dtype float32 --distributed-executor-backend uni --max-model-len 2048 "
        f"--max-num-seqs {spec.seats} --max-num-batched-tokens 512 "
        f"--num-gpu-blocks-override {spec.blocks} --stream-interval 16 "
        "--disable-uvicorn-access-log "
        f"--scheduler-cls {_ENGINE}.PacedScheduler --logits-processors {_ENGINE}:SecretLength "
        f"--additional-config '{json.dumps(spec.pace.as_setting())}' {spec.more_args}"
    )


async def start_paced(services: Services, setting: Setting, python: Path, model: Path) -> Engines:
    """Start all at once; predictors begin with the profile, at its own pace."""
    os.environ.update(ENVIRONMENT)  # which the engines inherit
    os.environ["VLLM_SERVER_DEV_MODE"] = "1"  # for /reset_prefix_cache
    os.environ["PYTHONPATH"] = str(ROOT)  # where the engines find their scheduler
    started = await asyncio.gather(
        *(
            services.start(
                f"launcher-{index}",
                "services.backend",
                "--engine=vllm",
                f"--name=engine-{index}",
                f"--python={python}",
                f"--model={model}",
                f"--served-model-name={MODEL_NAME}",
                f"--run-dir={services.folder}",
                f"--engine-args={engine_args(spec)}",
                f"--profile={spec.pace.profile}",
                start_timeout_s=_START_TIMEOUT_S,
            )
            for index, spec in enumerate(setting.engines)
        )
    )
    engines = Engines(
        Setup(len(started), setting.engines[0].pace.profile, 1.0),
        MODEL_NAME,
        tuple(str(launcher.facts["url"]) for launcher in started),
        tuple(str(launcher.facts["predictor"]) for launcher in started),
        tuple(
            f"{SHARED_MEMORY}{services.folder}/engine-{i}.snapshots" for i in range(len(started))
        ),
    )
    await warm_up(engines)
    return engines


async def warm_up(engines: Engines) -> None:
    """Let every engine load its code, and every predictor learn its engine's pace."""
    async with httpx.AsyncClient(trust_env=False, timeout=_TIMEOUT_S) as client:
        for words in (_WARM_UP_WORDS[:1], _WARM_UP_WORDS):
            answers = await asyncio.gather(
                *(
                    client.post(
                        f"{url}/v1/completions",
                        json={"model": MODEL_NAME, "prompt": "a " * count, "max_tokens": 60},
                    )
                    for url in engines.urls
                    for count in words
                )
            )
            for answer in answers:
                answer.raise_for_status()


async def forget_prefixes(engines: Engines) -> None:
    """Empty the prefix caches of idle engines."""
    async with httpx.AsyncClient(trust_env=False, timeout=_TIMEOUT_S) as client:
        for url in engines.urls:
            (await client.post(f"{url}/reset_prefix_cache")).raise_for_status()
