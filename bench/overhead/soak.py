"""Do memory and descriptors stay what they are under load?

The processes are those of `bench.overhead.placement_load`, with one scheduler that places by `slo`.
"""

import argparse
import asyncio
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

from bench.overhead.load.client import send
from bench.overhead.load.cluster import (
    TICK_MS,
    Schedulers,
    Variant,
    running_cluster,
    running_schedulers,
)
from bench.report import Benchmark, Blocks, Numbers, made_by, markdown_table
from foretell.services.process import runtime

__all__ = ["BENCH", "arguments", "measure", "tables"]
BENCH = Benchmark(
    __file__,
    __doc__,
    takes="11 minutes",
    needs="gcc, Linux",
    packages=("foretell", "numpy", "grpcio", "protobuf", "uvloop", "onnxruntime"),
)
ENGINES = 12
_SLO = Variant("slo", "`slo`", "slo")
_CHUNKS = 3
_EVERY_S = 10.0
_TITLES = {
    "scheduler": "scheduler",
    "sidecars": "sidecars",
    "tagger": "tagger",
    "encoder": "its model",
}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=float, default=10.0, help="Length of the run.")
    parser.add_argument("--rate", type=float, default=400.0, help="Requests per s.")


def measure(options: argparse.Namespace) -> Numbers:
    """Load one scheduler for so long, and look at all processes every ten seconds."""
    with (
        TemporaryDirectory(prefix="foretell-bench-") as folder,
        asyncio.Runner(loop_factory=runtime.loop_factory()) as runner,
    ):
        found = runner.run(_measure(Path(folder), options.minutes, options.rate))
    return {"engines": ENGINES, "minutes": options.minutes, "rate": options.rate, **found}


async def _measure(folder: Path, minutes: float, rate: float) -> dict[str, Any]:
    samples: list[dict[str, tuple[float, int]]] = []
    answered, failures = 0, Counter[str]()
    async with (
        running_cluster(folder, ENGINES) as cluster,
        running_schedulers(cluster, _SLO) as schedulers,
    ):
        ends_s, number = time.monotonic() + 60 * minutes, 0
        while time.monotonic() < ends_s:  # where cores are busy, what is late takes longer
            answers = await send(
                schedulers.ports, rate, _EVERY_S, seed=number, prompts=str(number), chunks=_CHUNKS
            )
            answered += len(answers.first_ms)
            failures += answers.failures
            samples.append(await _settled(schedulers))
            print(number, answered, dict(failures), samples[-1], file=sys.stderr)
            number += 1
    return {"answered": answered, "failures": dict(failures), "samples": samples}


async def _settled(schedulers: Schedulers) -> dict[str, tuple[float, int]]:
    """What the processes hold a moment after the last answer."""
    await asyncio.sleep(0.5)
    return schedulers.held()


def tables(page: Numbers) -> Blocks:
    """A row for each kind of process."""
    samples: list[dict[str, Sequence[float]]] = page["samples"]
    every_s = 60 * page["minutes"] / len(samples)
    minute = round(60 / every_s)
    rows = []
    for name, title in _TITLES.items():
        memory = [sample[name][0] for sample in samples]
        descriptors = [sample[name][1] for sample in samples]
        rows.append(
            (
                title,
                *(f"{memory[index]:.1f}" for index in (0, len(memory) // 2, -1)),
                f"{_growth(memory[minute:]) * 3600 / every_s:+.1f}",
                f"{descriptors[0]:g}",
                f"{max(descriptors):g}",
                f"{descriptors[-1]:g}",
            )
        )
    header = (
        *("", "MiB after 10 s", "in the middle", "at the end", "growth after a minute, MiB/h"),
        *("descriptors after 10 s", "at most", "at the end"),
    )
    lines = [
        made_by(page),
        f"{page['answered']:,} answers in {page['minutes']:g} minutes at {page['rate']:g} requests "
        f"a second, {_told(page['failures'])}; one scheduler, {page['engines']} engines with their "
        f"sidecars, three chunks an answer, one every {TICK_MS} ms.\n",
        markdown_table(header, rows),
    ]
    return {"tables": "\n".join(lines)}


def _told(failures: dict[str, int]) -> str:
    """How many requests failed, and how."""
    if not failures:
        return "none failed"
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(failures.items()))
    return f"{sum(failures.values())} failed ({kinds})"


def _growth(values: Sequence[float]) -> float:
    """The slope of the line of least squares, per sample; 0 of fewer than two."""
    if len(values) < 2:
        return 0.0
    middle, mean = (len(values) - 1) / 2, fmean(values)
    spread = sum((index - middle) ** 2 for index in range(len(values)))
    return sum((i - middle) * (value - mean) for i, value in enumerate(values)) / spread
