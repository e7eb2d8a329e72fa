"""Progress and output of `foretell accuracy --live`."""

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from foretell.tools.live.measure import LiveOptions, completed, measure
from foretell.tools.live.report import COLUMNS, LATENCIES, cells, report
from foretell.tools.progress import showing


def live(options: LiveOptions, recording: Path | None) -> None:
    """Measure, print a table to stderr and the report to stdout; keep the recording if wanted."""
    if recording is not None and not recording.absolute().parent.is_dir():
        raise SystemExit(f"accuracy: the folder of {recording} does not exist")
    with showing("connecting") as show:
        found = completed(measure(options, show))
    if recording is not None:
        found.write(recording)
    result = report(found)
    Console(stderr=True).print(error_table(result["errors"]))
    print(json.dumps(result, indent=2))  # noqa: T201  the command's output


def error_table(found: dict[str, Any]) -> Table:
    """Absolute relative errors and the signed median, a row for each predictor."""
    table = Table(title="|predicted - actual| / actual", title_justify="left")
    table.add_column("predictor")
    for kind in LATENCIES:
        for column in COLUMNS:
            table.add_column(f"{kind} {column}", justify="right")
    for name, kinds in found.items():
        table.add_row(name, *cells(kinds))
    return table
