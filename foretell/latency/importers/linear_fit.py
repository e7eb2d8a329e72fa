"""Fits a profile's linear coefficients by non-negative least squares of the relative error."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.optimize import nnls

from foretell.latency.features import features
from foretell.latency.linear import StepTimeModel
from foretell.model import BatchShape, GpuProfile
from foretell.model.batch import prefill_pairs

DECODES = (1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 64, 96, 128, 160, 192, 224, 256)
CONTEXTS = (50, 100, 200, 400, 700, 1000, 1500, 2000, 3000, 4000)
CHUNKS = (1, 4, 16, 32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
COMPUTED = (0, 256, 1024, 2048, 3500)


def fit_linear(profile: GpuProfile, model: StepTimeModel) -> GpuProfile:
    """The profile with coefficients fitted to `model`, and the fit's median relative error.

    It is over a grid of steps within the profile's limits (KV blocks, token budget, sequences).
    Decode, prefill and mixed steps have equal total weights.
    """
    shapes = list(_shapes(profile))
    kinds = np.array([2 * bool(s.prefill_seqs) + bool(s.decode_seqs) for s in shapes])
    seconds = np.array([model.step_s(shape) for shape in shapes])
    x = np.array([features(shape) for shape in shapes])
    weights = np.array([1.0 / np.sqrt((kinds == kind).mean()) for kind in kinds])
    coefficients = np.array(relative_fit(x, seconds, weights))
    error = np.abs(x @ coefficients - seconds) / seconds
    return replace(
        profile,
        coefficients_s=tuple(float(f"{c:.5g}") for c in coefficients),
        relative_residual=round(float(np.median(error)), 4),
    )


def relative_fit(x: Any, seconds: Any, weights: Any = 1.0) -> tuple[float, ...]:
    """Non-negative coefficients that minimise the weighted squared *relative* error.

    `x` is (points, coefficients) and `seconds` (points,); both may be nested sequences.
    """
    x, seconds = np.asarray(x, dtype=float), np.asarray(seconds, dtype=float)
    weights = np.broadcast_to(weights, seconds.shape)
    scaled = x * (weights / seconds)[:, None]
    scale = np.maximum(np.abs(scaled).max(axis=0), 1e-30)
    solution, _ = nnls(scaled / scale, weights)
    return tuple(float(c) for c in solution / scale)


def _shapes(profile: GpuProfile) -> Iterator[BatchShape]:
    """All steps of the grid: decode, prefill (one or two chunks), and mixed steps."""
    capacity = profile.total_blocks * profile.block_size_tokens or float("inf")
    decodes = [
        (n, context)
        for n in DECODES
        for context in CONTEXTS
        if n <= profile.max_num_seqs and n * (context + 1) <= capacity
    ]
    for n, context in decodes:
        yield _shape((), n, context)
    for chunk in CHUNKS:
        for computed in COMPUTED:
            if chunk + computed > profile.max_model_len:
                continue
            options: list[tuple[tuple[int, int], ...]] = [((chunk, computed),)]
            if chunk >= 64:
                options.append(((chunk // 2, 0), (chunk - chunk // 2, computed)))
            for chunks in options:
                for n, context in ((0, 0), *decodes[::3]):
                    held = n * context + sum(q + c for q, c in chunks)
                    fits = chunk + n <= profile.max_num_batched_tokens and held <= capacity
                    if fits and n + len(chunks) <= profile.max_num_seqs:
                        yield _shape(chunks, n, context)


def _shape(chunks: Sequence[tuple[int, int]], decodes: int, context: int) -> BatchShape:
    return BatchShape(
        prefill_seqs=len(chunks),
        prefill_tokens=sum(q for q, _ in chunks),
        prefill_pairs=sum(prefill_pairs(q, c) for q, c in chunks),
        decode_seqs=decodes,
        decode_pairs=decodes * (context + 1),
    )
