"""Profiles as JSON documents (foretell/latency/profiles/README.md describes them), both ways."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from foretell.latency.features import FEATURES
from foretell.model import Curve, GpuProfile, Grid, StepTables
from foretell.model.profile import PROFILE_VERSION

_US = 1e-6
_DIGITS = 4  # measurements repeat to a percent or so


def profile_from_json(document: Mapping[str, Any]) -> GpuProfile:
    """The profile in a parsed file; ValueError where it is none, or of a newer version."""
    fields = dict(document)
    version = fields.pop("version", 1)
    if version not in range(1, PROFILE_VERSION + 1):
        raise ValueError(f"profile format {version!r} is not known; this is {PROFILE_VERSION}")
    try:
        fields["coefficients_s"] = tuple(fields["coefficients_s"])
        if fields.get("tables") is not None:
            fields["tables"] = _tables(fields["tables"])
        profile = GpuProfile(**fields)
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a profile: {error}") from error
    if len(profile.coefficients_s) != len(FEATURES):
        raise ValueError(f"a profile needs {len(FEATURES)} coefficients")
    return profile


def profile_to_json(profile: GpuProfile) -> dict[str, Any]:
    """The document of `profile`; tables in microseconds of four digits."""
    fields = {"version": PROFILE_VERSION, **asdict(profile)}
    tables = fields.pop("tables")
    if profile.tables is not None:
        fields["tables"] = {
            "tokens": _curve_json(profile.tables.tokens),
            "sequences": _curve_json(profile.tables.sequences),
            "prefill": _grid_json(profile.tables.prefill),
            "decode": _grid_json(profile.tables.decode),
            "mixed": _grid_json(profile.tables.mixed) if profile.tables.mixed else None,
            "ranks": _curve_json(profile.tables.ranks) if profile.tables.ranks else None,
            "graph_sizes": tables["graph_sizes"],
            "overhead_us": _short(profile.tables.overhead_s),
        }
    return fields


def _tables(document: Mapping[str, Any]) -> StepTables:
    return StepTables(
        tokens=_curve(document["tokens"]),
        sequences=_curve(document["sequences"]),
        prefill=_grid(document["prefill"]),
        decode=_grid(document["decode"]),
        mixed=_grid(document["mixed"]) if document.get("mixed") else None,
        ranks=_curve(document["ranks"]) if document.get("ranks") else None,
        graph_sizes=tuple(document.get("graph_sizes", ())),
        overhead_s=document.get("overhead_us", 0.0) * _US,
    )


def _curve(document: Mapping[str, Any]) -> Curve:
    return Curve(tuple(document["x"]), tuple(value * _US for value in document["us"]))


def _grid(document: Mapping[str, Any]) -> Grid:
    axes = tuple(tuple(axis) for axis in document["axes"])
    return Grid(axes, tuple(value * _US for value in document["us"]))


def _curve_json(curve: Curve) -> dict[str, Any]:
    return {"x": list(curve.x), "us": [_short(value) for value in curve.seconds]}


def _grid_json(grid: Grid) -> dict[str, Any]:
    return {"axes": [list(axis) for axis in grid.axes], "us": [_short(v) for v in grid.seconds]}


def _short(seconds: float) -> float:
    value = float(f"{seconds / _US:.{_DIGITS}g}")
    return int(value) if value.is_integer() else value
