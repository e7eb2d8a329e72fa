"""Reads what bench.accuracy.record_steps wrote."""

import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretell.model import BatchShape

RECORDING = Path(__file__).resolve().parent / "data" / "vllm_cpu_steps.csv.gz"


@dataclass(frozen=True, slots=True)
class TimedStep:
    """A step, when it began, counted from the first, and how long it took."""

    started_s: float
    duration_s: float
    shape: BatchShape


def read_steps(path: Path = RECORDING) -> tuple[dict[str, Any], list[TimedStep]]:
    """What the recording is, and its steps in their order."""
    about, _, *rows = gzip.decompress(path.read_bytes()).decode().splitlines()
    steps = []
    for row in rows:
        started_us, duration_us, *sums = map(int, row.split(","))
        steps.append(TimedStep(started_us / 1e6, duration_us / 1e6, BatchShape(*sums)))
    return json.loads(about.removeprefix("#")), steps
