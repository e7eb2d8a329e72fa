"""`python -m foretell.services.provisioner.replay` replays a time of the record: JSON in, JSON
out.
"""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from foretell.model import Slo
from foretell.provision.regret import FORECAST_S, Regret, regret
from foretell.services.process.runtime import die_with_parent
from foretell.services.provisioner.record import Recorded

_NICE = 5  # placing requests comes first, but it must come to an end
AFTER_S = 300.0
"""Forecasts are compared with what came up to so long after a window."""


def replayed(recorded: Recorded, begins_s: float, ends_s: float) -> Regret | None:
    """The regret of the time between; None where too little is recorded of it.

    Raises ValueError where it is not known.
    """
    kind, targets = recorded.engine()
    window = recorded.window(begins_s, ends_s, AFTER_S + FORECAST_S)
    return regret(window, kind, Slo(targets.ttft_s, targets.tpot_s), targets.within)


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """The regret of a window of a folder, and the lines that could not be read."""
    recorded = Recorded(Path(asked["folder"]))
    try:
        found = replayed(recorded, asked["begins_s"], asked["ends_s"])
    except ValueError as error:
        return {"error": str(error)}
    return {"regret": asdict(found) if found else None, "unreadable": recorded.unreadable}


def main() -> None:
    die_with_parent()
    os.nice(_NICE)
    sys.stdout.write(json.dumps(answer(json.load(sys.stdin))))


if __name__ == "__main__":
    main()
