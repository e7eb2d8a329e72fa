"""Replays what a provisioner has recorded: a table, JSON and a picture."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from math import nan
from pathlib import Path

from foretell.provision.regret import Regret, Slice
from foretell.services.provisioner.record import Recorded
from foretell.services.provisioner.replay import replayed
from foretell.tools.pictures import figure, save


def look_back(recorded: Recorded, window_s: float) -> Iterator[Regret]:
    """The regret of each window that is recorded, as far as there is enough to replay.

    Raises ValueError where the record cannot be replayed.
    """
    first_s, last_s = recorded.span()
    begins_s = first_s // window_s * window_s
    while begins_s < last_s:
        found = replayed(recorded, begins_s, min(begins_s + window_s, last_s))
        if found is not None:
            yield found
        begins_s += window_s


def show(found: Sequence[Regret]) -> None:
    """Print a table: after the ratios within targets come the errors of forecasts."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, padding=(0, 1, 0, 0))
    table.add_column("from (UTC)", no_wrap=True)
    for title in (
        "sent",
        "hours",
        "wasted",
        "saved by one more",
        "one less",
        "same",
        "one more",
        "real",
        "rate off",
        "tokens off",
    ):
        table.add_column(title, justify="right")
    for each in found:
        table.add_row(
            datetime.fromtimestamp(each.begins_s, UTC).strftime("%m-%d %H:%M"),
            str(each.arrivals),
            f"{each.instance_s / 3600.0:.2f}",
            f"{each.wasted_instance_s / 3600.0:.2f}",
            str(each.saved_by_one_more),
            *map(_percent, each.within),
            _percent(each.measured_within),
            _percent(each.arrivals_error),
            _percent(each.lengths_error),
        )
    Console().print(table)


def draw(found: Sequence[Regret], path: Path) -> None:
    """Arrivals and their forecast, instances and those that were wasted, requests outside their
    targets."""
    picture = figure(10.5, 8.0)
    arrivals, instances, missed = picture.subplots(3, 1, sharex=True)
    slices = [each for window in found for each in window.slices]
    begins_s = slices[0].begins_s
    minutes = [(each.begins_s - begins_s) / 60.0 for each in slices]
    minutes.append((slices[-1].ends_s - begins_s) / 60.0)
    seconds = [each.ends_s - each.begins_s for each in slices]
    came = [each.arrivals / s for each, s in zip(slices, seconds, strict=True)]
    arrivals.stairs(came, minutes, label="arrived")
    foretold = [nan if s.expected_rps is None else s.expected_rps for s in slices]
    arrivals.stairs(foretold, minutes, label="expected", linestyle="--")
    arrivals.set_ylabel("requests/s")
    there = [each.instances for each in slices]
    needed = [n - w for n, w in zip(there, _wasted(slices), strict=True)]
    instances.stairs(there, minutes, label="there")
    instances.stairs(there, minutes, baseline=needed, fill=True, alpha=0.3, label="wasted")
    instances.set_ylabel("instances")
    for index, name in enumerate(("one less", "same", "one more")):
        missed.stairs([each.missed[index] for each in slices], minutes, label=name)
    missed.set_yscale("symlog", linthresh=1)
    missed.set_ylabel("requests outside targets")
    missed.set_xlabel("minutes")
    for axis in (arrivals, instances, missed):
        axis.legend(fontsize="small")
    save(picture, path)


def _wasted(slices: Sequence[Slice]) -> list[float]:
    return [each.wasted_instance_s / (each.ends_s - each.begins_s) for each in slices]


def _percent(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.1%}"
