"""Starts the engines under test, all at once if their shares of GPU memory can be set."""

import asyncio
import os
import re
from dataclasses import dataclass
from pathlib import Path

from foretell.services.process.children import ChildFailed
from foretell.tools.check.dummies import SHAPES, weight_bytes, write_dummy
from foretell.tools.check.engine_args import (
    CO_SCHEDULER,
    CPU_ARGS,
    CPU_ENVIRONMENT,
    DUMMY_ARGS,
    EVERYWHERE,
    GPU_ARGS,
    GPU_ENVIRONMENT,
    METER_FILE,
    METERED,
)
from foretell.tools.check.hardware import Gpu
from foretell.tools.check.options import CheckOptions
from foretell.tools.harness.schedulers import Engines
from foretell.tools.harness.services import Service, Services

MODEL_NAME = "checked"
"""The name that engines serve their model by."""
_GIB = 2**30
_USED_RATIO = 0.9  # of a GPU's memory, by all engines together: vLLM's default for one
_BESIDE_BYTES = 3 * _GIB  # an engine's memory besides weights and KV cache: context, graphs
_LEAST_KV_BYTES = 3 * _GIB
_MOST_SHARING = 4
_LEAST_ENGINES, _MOST_ENGINES = 2, 16


class CannotCheck(Exception):
    """The check is not possible; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The engines to start."""

    model: str
    """Folder or name."""
    dummy: bool
    """Whether its weights are random."""
    gpus: tuple[Gpu, ...]
    count: int
    per_gpu: int
    """Engines that share a GPU; 1 without GPUs."""
    gpus_each: int
    """GPUs of each engine (tensor parallelism)."""
    kv_bytes: int
    """Bytes of each engine's KV cache if several share a GPU; 0: vLLM determines it."""

    @property
    def environment(self) -> dict[str, str]:
        return dict(GPU_ENVIRONMENT if self.gpus else CPU_ENVIRONMENT)

    @property
    def at_once(self) -> bool:
        """Whether engines can start at the same time: those that share a GPU must not measure each
        other's memory."""
        return self.per_gpu == 1 or self.kv_bytes > 0

    def places(self, index: int) -> str:
        """The GPU indices of an engine, as the launcher takes them."""
        if not self.gpus:
            return ""
        first = (index // self.per_gpu) * self.gpus_each
        return ",".join(map(str, range(first, first + self.gpus_each)))

    def args(self, index: int, more: str) -> str:
        """Flags of an engine; the last one serves offline requests, too."""
        kind = CO_SCHEDULER if index == self.count - 1 else METERED
        parts = [GPU_ARGS if self.gpus else CPU_ARGS, EVERYWHERE, f"--scheduler-cls {kind}"]
        if self.dummy:
            parts.append(DUMMY_ARGS if self.gpus else "--load-format dummy")
        if self.per_gpu > 1:
            parts.append(f"--gpu-memory-utilization {_USED_RATIO / self.per_gpu:.3f}")
        if self.kv_bytes:
            parts.append(f"--kv-cache-memory-bytes {self.kv_bytes}")
        return " ".join([*parts, more])


def plan_engines(options: CheckOptions, gpus: tuple[Gpu, ...], folder: Path) -> Plan:
    """Choose the model and the number of engines; write a dummy's files below `folder`.

    Raises CannotCheck if they do not fit.
    """
    dummy = options.dummy or ("" if options.model else "qwen3-0.6b" if gpus else "tiny")
    if dummy and dummy not in SHAPES:
        raise CannotCheck(f"--dummy {dummy} is not known; there are {', '.join(SHAPES)}")
    model = write_dummy(dummy, folder) if dummy else Path(options.model)
    weights = weight_bytes(model) if model.is_dir() else 0
    gpus_each = _gpus_each(options.engine_args)
    groups = len(gpus) // gpus_each
    if gpus and not groups:
        raise CannotCheck(f"an engine needs {gpus_each} GPUs, and there are {len(gpus)}")
    if not gpus or groups > 1:
        count = options.engines or (min(groups, _MOST_ENGINES) if gpus else 2)
    else:
        count = options.engines or _sharing(gpus[0].memory_bytes, weights)
    if count < _LEAST_ENGINES:
        raise CannotCheck("there must be two engines at least, for requests to be placed")
    per_gpu = -(-count // groups) if gpus else 1
    kv_bytes = _kv_bytes(gpus[0].memory_bytes, per_gpu, weights) if per_gpu > 1 and weights else 0
    if per_gpu > 1 and weights and kv_bytes < _LEAST_KV_BYTES:
        raise CannotCheck(
            f"{per_gpu} engines of {weights / _GIB:.1f} GiB do not fit one {gpus[0].name}: "
            "choose fewer --engines or a smaller model"
        )
    name = str(model.absolute()) if model.is_dir() else options.model
    return Plan(name, bool(dummy), gpus, count, per_gpu, gpus_each, kv_bytes)


def _gpus_each(engine_args: str) -> int:
    found = re.search(r"(?:--tensor-parallel-size|-tp)[ =](\d+)", engine_args)
    return max(1, int(found.group(1))) if found else 1


def _kv_bytes(memory_bytes: int, per_gpu: int, weights: int) -> int:
    return int(_USED_RATIO * memory_bytes / per_gpu) - weights - _BESIDE_BYTES


def _sharing(memory_bytes: int, weights: int) -> int:
    """Engines that one GPU has room for: two at least, so that there is a choice."""
    for count in range(_MOST_SHARING, 2, -1):
        if weights and _kv_bytes(memory_bytes, count, weights) >= _LEAST_KV_BYTES:
            return count
    return 2


async def start(
    plan: Plan, options: CheckOptions, services: Services, meter: Path, timeout_s: float
) -> Engines:
    """Start all engines with their predictors.

    Raises CannotCheck with the errors in the logs if an engine does not start.
    """
    os.environ.update(plan.environment)  # inherited by the engines
    os.environ[METER_FILE] = str(meter)

    async def one(index: int) -> Service:
        more = {
            "python": options.python,
            "gpus": plan.places(index),
            "profile": options.profile,
            "ready-timeout-s": f"{timeout_s:.0f}",
        }
        return await services.start_vllm(
            index,
            model=plan.model,
            served_name=MODEL_NAME,
            engine_args=plan.args(index, options.engine_args),
            start_timeout_s=timeout_s,
            more=tuple(f"--{name}={value}" for name, value in more.items() if value),
        )

    indices = range(plan.count)
    try:
        if plan.at_once:
            started = await asyncio.gather(*map(one, indices))
        else:
            started = [await one(index) for index in indices]
    except ChildFailed as error:
        raise CannotCheck(
            f"an engine did not start: {error}{_last_words(services.folder)}"
        ) from None
    return Engines.of(MODEL_NAME, started, services)


def _last_words(folder: Path) -> str:
    """The last lines of engines' logs that contain an error."""
    lines: list[str] = []
    for log in sorted(folder.glob("engine-*.engine.log")):
        text = log.read_text(encoding="utf-8", errors="replace")
        wrong = [line for line in text.splitlines() if re.search(r"Error|error:", line)]
        lines += [f"\n  {log.name}: {line.strip()[:300]}" for line in wrong[-2:]]
    return "".join(lines)
