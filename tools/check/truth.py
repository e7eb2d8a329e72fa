"""How far off are predictions? Steps and requests recorded at 70% load, and analysed afterwards."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from foretell.latency.features import FEATURES
from foretell.latency.linear import LinearStepTime
from foretell.model import EngineConfig, EngineSnapshot, GpuProfile, Step
from foretell.tools.check.context import Context
from foretell.tools.check.engine_args import LENGTH_KEY
from foretell.tools.live.measure import LiveOptions, measure
from foretell.tools.live.recording import Recording
from foretell.tools.live.replay import SpecOf, snapshots_of, spec_of, states, told_of
from foretell.tools.live.report import FORETELL, Pairs, all_pairs, errors_of, own_pairs
from foretell.tools.profiles.imports import of_engine, write_profile
from foretell.tools.profiles.steps import fit, median_error

RECORDING = "truth.zip"
PROFILE = "profile.json"
UTILISATION = 0.7
_LEAST_STEPS = 100
_LENGTHS: dict[str, SpecOf] = {"hidden": told_of, "true": spec_of}


async def truth(context: Context, seconds: float) -> dict[str, Any]:
    """Load the first engine alone, as a scheduler would, with hidden lengths."""
    options = LiveOptions(
        context.engines.urls[0],
        context.engines.predictors[0],
        context.engines.feeds[0],
        seconds=seconds,
        secret_key=LENGTH_KEY,
        utilisation=UTILISATION,
        seed=context.options.seed,
        lengths=context.lengths,
    )

    def show(what: str, done: int, total: int) -> None:
        context.say(f"truth: {what}, {done} of {total}" if total else f"truth: {what}, {done}")

    recording = await measure(options, show)
    recording.write(context.output / RECORDING)
    deployed = errors_of({**all_pairs(recording), FORETELL: own_pairs(recording)})
    return {**recording.about, "snapshots": len(recording.snapshots), "as_deployed": deployed}


def analyse(folder: Path) -> dict[str, Any]:
    """Errors with hidden and with true lengths, with and without a profile of the warm-up's steps.

    Writes that profile, too. Raises ValueError if the recording has too few steps.
    """
    recording = Recording.read(folder / RECORDING)
    snapshots = snapshots_of(recording)
    first_s = min(r.decided_unix_s for r in recording.requests if r.measured)
    before, measured = _steps(snapshots, first_s)
    if min(len(before), len(measured)) < _LEAST_STEPS:
        raise ValueError(f"only {len(before)} and {len(measured)} steps were recorded")
    config = snapshots[-1].config
    profile = _profile(config, before, str(recording.about.get("model", "")))
    write_profile(profile, folder / PROFILE)
    found: dict[str, dict[str, Pairs]] = {}
    for lengths, start in product(_LENGTHS, ("no profile", "profile")):
        prior = profile if start == "profile" else None
        predicted = _predicted(recording, snapshots, _LENGTHS[lengths], prior)
        found[f"{lengths} lengths, {start}"] = own_pairs(predicted)
    return {
        "errors": errors_of(found),
        "profile": {
            "steps": len(before),
            "median_error_of_later_steps": round(
                median_error(LinearStepTime(profile.coefficients_s), measured), 4
            ),
            "microseconds_per": {
                name: round(1e6 * value, 4)
                for name, value in zip(FEATURES, profile.coefficients_s, strict=True)
            },
        },
    }


def _steps(snapshots: Sequence[EngineSnapshot], first_s: float) -> tuple[list[Step], list[Step]]:
    """The steps that ended before `first_s`, and the others."""
    steps = [step for snapshot in snapshots for step in snapshot.completed_steps]
    before = [step for step in steps if step.started_unix_s + step.duration_s < first_s]
    return before, steps[len(before) :]


def _profile(config: EngineConfig, steps: Sequence[Step], model: str) -> GpuProfile:
    fitted = fit(steps)
    profile = of_engine(
        config,
        f"checked/{model.rstrip('/').rpartition('/')[2] or 'model'}",
        f"fitted by `foretell check` to {len(steps)} steps of {config.engine_version}",
    )
    return replace(
        profile,
        coefficients_s=tuple(float(f"{c:.5g}") for c in fitted.coefficients_s),
        relative_residual=round(median_error(fitted, steps), 4),
    )


def _predicted(
    recording: Recording,
    snapshots: list[EngineSnapshot],
    lengths: SpecOf,
    profile: GpuProfile | None,
) -> Recording:
    """The recording with replayed predictions."""
    requests = [
        replace(
            state.served,
            predicted_ttft_s=state.prediction.ttft_s,
            predicted_e2e_s=state.prediction.e2e_s,
            expected_tokens=lengths(state.served).length.expected_tokens,
        )
        for state in states(recording, snapshots, lengths, profile)
    ]
    return replace(recording, requests=requests)
