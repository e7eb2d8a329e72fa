"""`foretell profile measure` on a terminal: a progress bar, the file, and what it says."""

import asyncio
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from foretell.latency.features import FEATURES
from foretell.tools.profiles.imports import ProfileError, write_profile
from foretell.tools.profiles.options import MeasureOptions
from foretell.tools.profiles.run import Measurement, measure
from foretell.tools.progress import showing


def measure_to(output: Path, options: MeasureOptions) -> None:
    """Measure, write the profile and print a summary; ProfileError where that cannot be done."""
    try:
        output.touch()  # not found out after the measurement
    except OSError as error:
        raise ProfileError(f"{output}: {error.strerror}") from error
    started = time.monotonic()
    try:
        with showing("asking the endpoint") as show:
            found = asyncio.run(
                measure(
                    options,
                    lambda what: show(what, int(time.monotonic() - started), int(options.seconds)),
                )
            )
    except BaseException:
        if not output.stat().st_size:
            output.unlink()
        raise
    write_profile(found.profile, output)
    Console().print(_summary(found))


def _summary(found: Measurement) -> Table:
    profile, fit = found.profile, found.fit
    table = Table(
        "", "microseconds", title=f"{profile.name}: the time of a step", title_justify="left"
    )
    table.columns[1].justify = "right"
    for feature, seconds in zip(FEATURES, profile.coefficients_s, strict=True):
        table.add_row(f"per {feature.replace('_', ' ').removesuffix('s')}", f"{seconds * 1e6:.5g}")
    table.add_section()
    table.add_row("outside steps, per request", f"{fit.request_s * 1e6:.5g}")
    table.add_row("outside steps, per prompt token", f"{fit.request_token_s * 1e6:.5g}")
    table.caption = (
        f"{len(found.windows)} windows, {found.requests} requests; "
        f"median error of a window {fit.relative_residual:.1%}"
    )
    return table
