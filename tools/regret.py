"""Replays what a provisioner has recorded: a table, JSON and a picture."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from foretell.provision.regret import Regret
from foretell.services.provisioner.record import Recorded
from foretell.services.provisioner.replay import replayed


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


def _percent(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.1%}"
