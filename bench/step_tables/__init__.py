"""Measured GPU kernel tables, summed to the time of one engine step.

Each module reads the tables of one source and answers `step_s(batch)`: the kernels of every layer,
the embedding and the LM head, one after another, as one CUDA stream runs them. What a table does
not hold is derived there in the open, and named in the `provenance` of the profile.
"""

import csv
import gzip
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from foretell.model import BatchShape, DeviceSpec, ModelSpec
from foretell.model.batch import prefill_pairs

MS = 1e-3
US = 1e-6


@dataclass(frozen=True, slots=True)
class Batch:
    """One step: prefill chunks as (query tokens, tokens computed before), and equal decodes."""

    prefills: tuple[tuple[int, int], ...] = ()
    decodes: int = 0
    context: int = 0

    @property
    def tokens(self) -> int:
        """Tokens fed through the model."""
        return sum(q for q, _ in self.prefills) + self.decodes

    @property
    def sequences(self) -> int:
        """Sequences of the step; each gets one row of the LM head."""
        return len(self.prefills) + self.decodes

    @property
    def shape(self) -> BatchShape:
        """The step as the library sees it."""
        return BatchShape(
            prefill_seqs=len(self.prefills),
            prefill_tokens=sum(q for q, _ in self.prefills),
            prefill_pairs=sum(prefill_pairs(q, c) for q, c in self.prefills),
            decode_seqs=self.decodes,
            decode_pairs=self.decodes * (self.context + 1),
        )


class StepTables(Protocol):
    """Anything that knows the GPU time of a step."""

    def step_s(self, batch: Batch) -> float:
        """Seconds."""
        ...


def read_csv(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file; gzip is undone as often as it was applied."""
    raw = path.read_bytes()
    while raw[:2] == b"\x1f\x8b":
        raw = gzip.decompress(raw)
    return list(csv.DictReader(io.StringIO(raw.decode())))


def number(cell: str) -> float:
    """A cell as a float; an empty one is NaN."""
    return float(cell) if cell else float("nan")


@dataclass(frozen=True, slots=True)
class Curve:
    """Seconds over one variable: linear between the points, proportional beyond the last."""

    x: Any
    y: Any

    @classmethod
    def of(cls, points: list[tuple[float, float]]) -> "Curve":
        """From unordered points; the median where x repeats."""
        grouped: dict[float, list[float]] = {}
        for x, y in points:
            if not np.isnan(y):
                grouped.setdefault(x, []).append(y)
        xs = sorted(grouped)
        return cls(np.array(xs), np.array([float(np.median(grouped[x])) for x in xs]))

    def __call__(self, x: float) -> float:
        if x > self.x[-1]:
            return float(self.y[-1] * x / self.x[-1])
        return float(np.interp(x, self.x, self.y))


def lm_head_s(model: ModelSpec, vocabulary: int, rows: int, device: DeviceSpec) -> float:
    """An LM head the tables lack: its weights at 80% of the bandwidth, or its FLOPs at 70%."""
    weights = vocabulary * model.hidden_size * model.bytes_per_parameter
    flops = 2.0 * vocabulary * model.hidden_size * rows
    return max(weights / (0.8 * device.memory_bandwidth_bytes_per_s), flops / (0.7 * device.flops))


def non_negative_least_squares(a: Any, b: Any) -> Any:
    """The exact minimum of |a x - b| with x >= 0, by trying every support (few columns only)."""
    best, best_error = np.zeros(a.shape[1]), float(b @ b)
    for bits in range(1, 1 << a.shape[1]):
        support = [i for i in range(a.shape[1]) if bits >> i & 1]
        x, *_ = np.linalg.lstsq(a[:, support], b, rcond=None)
        if (x >= 0).all():
            error = float(((a[:, support] @ x - b) ** 2).sum())
            if error < best_error:
                best, best_error = np.zeros(a.shape[1]), error
                best[support] = x
    return best


def relative_fit(features: Any, seconds: Any, weights: Any = 1.0) -> Any:
    """Non-negative coefficients that minimise the weighted squared *relative* error."""
    weights = np.broadcast_to(weights, seconds.shape)
    scaled = features * (weights / seconds)[:, None]
    scale = np.maximum(np.abs(scaled).max(axis=0), 1e-30)
    return non_negative_least_squares(scaled / scale, weights) / scale
