"""What a file of offline requests asks of a GPU, and how soon it is done in which order."""

from functools import partial
from pathlib import Path
from typing import Any

from foretell.config import load_profile
from foretell.sim.orders import judged
from foretell.tools.order.file import read_lines, write_lines


def judge(path: Path, profile_name: str, ordered: Path | None) -> dict[str, Any]:
    """What `foretell order` prints; writes the file in the order that is done soonest where
    asked to.

    ValueError for a file or profile that cannot be used.
    """
    found = judged(partial(read_lines, path), load_profile(profile_name))
    if ordered is not None:
        write_lines(path, found.soonest, ordered)
    return found.found
