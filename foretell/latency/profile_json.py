"""Reads and writes profiles as JSON documents (format: foretell/latency/profiles/README.md)."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from foretell.latency.features import FEATURES
from foretell.model import Curve, GpuProfile, Grid, StepTables
from foretell.model.profile import PROFILE_VERSION

_PARTS = ("tokens", "sequences", "prefill", "decode", "mixed", "ranks")
"""The fields of `StepTables` that are curves or grids."""
_US = 1e-6
_DIGITS = 4  # measurements repeat to a percent or so


def profile_from_json(document: Mapping[str, Any]) -> GpuProfile:
    """The profile in a parsed document; ValueError if it is invalid or of a newer version."""
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
    """The document of `profile`; tables are in microseconds, with four digits."""
    fields = {"version": PROFILE_VERSION, **asdict(profile)}
    tables = fields.pop("tables")
    if profile.tables is not None:
        fields["tables"] = {
            **{name: _part_json(getattr(profile.tables, name)) for name in _PARTS},
            "graph_sizes": tables["graph_sizes"],
            "overhead_us": _short(profile.tables.overhead_s),
        }
    return fields


def _tables(document: Mapping[str, Any]) -> StepTables:
    return StepTables(
        **{name: _part(document[name]) for name in _PARTS if document.get(name)},
        graph_sizes=tuple(document.get("graph_sizes", ())),
        overhead_s=document.get("overhead_us", 0.0) * _US,
    )


def _part(document: Mapping[str, Any]) -> Any:
    seconds = tuple(value * _US for value in document["us"])
    if "x" in document:
        return Curve(tuple(document["x"]), seconds)
    return Grid(tuple(tuple(axis) for axis in document["axes"]), seconds)


def _part_json(part: Curve | Grid | None) -> dict[str, Any] | None:
    if part is None:
        return None
    where = {"x": part.x} if isinstance(part, Curve) else {"axes": part.axes}
    return {**where, "us": [_short(value) for value in part.seconds]}


def _short(seconds: float) -> float:
    value = float(f"{seconds / _US:.{_DIGITS}g}")
    return int(value) if value.is_integer() else value
