"""Turns measurements of one table into curves."""

from collections.abc import Hashable, Iterable, Mapping
from math import isnan
from statistics import median
from typing import TypeVar

from foretell.latency.tables import curve_s
from foretell.model import Curve

MS = 1e-3

Key = TypeVar("Key", bound=Hashable)


def curve_of(points: Iterable[tuple[float, float]]) -> Curve:
    """A curve through unordered (x, seconds) points: the median of equal x; NaN is ignored."""
    grouped: dict[float, list[float]] = {}
    for x, seconds in points:
        if not isnan(seconds):
            grouped.setdefault(x, []).append(seconds)
    if not grouped:
        raise ValueError("a table without measurements")
    xs = tuple(sorted(grouped))
    return Curve(xs, tuple(median(grouped[x]) for x in xs))


def curves_by(points: Iterable[tuple[Key, float, float]]) -> dict[Key, Curve]:
    """The curve of each key, in order of first appearance, from (key, x, seconds)."""
    grouped: dict[Key, list[tuple[float, float]]] = {}
    for key, x, seconds in points:
        grouped.setdefault(key, []).append((x, seconds))
    return {key: curve_of(found) for key, found in grouped.items()}


def across_s(curves: Mapping[float, Curve], key: float, x: float) -> float:
    """Seconds at `x` for `key`, linear between the neighbouring keys of `curves`."""
    keys = tuple(sorted(curves))
    return curve_s(Curve(keys, tuple(curve_s(curves[k], x) for k in keys)), key)
