"""`python -m foretell.services.batch.judge`: the best order in which to send a batch's lines.

JSON in and out. Simulating a batch takes seconds of CPU time, so it runs in its own process.
"""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from foretell.config import load_profile
from foretell.offline.requests import Line, requests_of
from foretell.offline.tree import Prompt
from foretell.services.batch.store import storage_of
from foretell.services.process.runtime import die_with_parent
from foretell.sim.orders import first_seen, judged

_NICE = 5  # processes that answer requests come first


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """The line numbers in the best order, and figures about that order; or an error.

    `asked`: `folder` and `files_url` as in `BatchStore`, the `file` of the batch, the `profile` of
    the engines ("": unknown, so lines are only grouped by common prefixes), the numbers of the
    lines `left`, and the output tokens of `answers` by line.
    """
    storage = storage_of(Path(asked["folder"]), asked["files_url"])

    def read() -> Iterator[tuple[Line, Prompt]]:
        with storage.opened(asked["file"]) as file:
            yield from requests_of(file)

    left = frozenset(asked["left"])
    try:
        if not asked["profile"]:
            numbers, sharing_ratio = first_seen(read)
            lines = [number for number in numbers if number in left]
            return {"lines": lines, "soonest": "dfs", "sharing_ratio": sharing_ratio}
        answers = {int(line): tokens for line, tokens in asked["answers"].items()}
        found = judged(read, load_profile(asked["profile"]), left, answers)
    except ValueError as error:
        return {"error": str(error)}
    return {"lines": [line.number for line in found.soonest], **found.found}


def main() -> None:
    die_with_parent()
    os.nice(_NICE)
    sys.stdout.write(json.dumps(answer(json.load(sys.stdin))))


if __name__ == "__main__":
    main()
