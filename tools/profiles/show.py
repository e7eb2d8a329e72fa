"""`foretell profile measure` on a terminal: a progress bar, the file, and what it says."""

import asyncio
import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from foretell.latency.features import FEATURES
from tools.profiles.imports import ProfileError, write_profile
from tools.profiles.run import Measurement, MeasureOptions, measure

_REFRESH_S = 0.25


def measure_to(output: Path, options: MeasureOptions) -> None:
    """Measure, write the profile and print a summary; ProfileError where that cannot be done."""
    try:
        output.touch()  # not found out after the measurement
    except OSError as error:
        raise ProfileError(f"{output}: {error.strerror}") from error
    console = Console(stderr=True)
    try:
        found = asyncio.run(_measured(options, console))
    except BaseException:
        if not output.stat().st_size:
            output.unlink()
        raise
    write_profile(found.profile, output)
    Console().print(_summary(found))


async def _measured(options: MeasureOptions, console: Console) -> Measurement:
    bar = Progress(
        BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}"), console=console
    )
    with bar:
        task = bar.add_task("asking the endpoint", total=options.seconds)
        started = time.monotonic()

        async def tick() -> None:
            while True:
                bar.update(task, completed=time.monotonic() - started)
                await asyncio.sleep(_REFRESH_S)

        ticking = asyncio.create_task(tick())
        try:
            found = await measure(options, lambda text: bar.update(task, description=text))
            bar.update(task, completed=options.seconds, description="done")
        finally:
            ticking.cancel()
    return found


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
