"""What a file of offline requests asks of a GPU, and how soon it is done in which order."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from foretell.config import load_profile
from foretell.sim.orders import Watched, judged
from foretell.tools.order.file import read_lines, write_lines
from foretell.tools.pictures import figure, save

_BINS = 120  # of the picture


def judge(
    path: Path, profile_name: str, ordered: Path | None, picture: Path | None
) -> dict[str, Any]:
    """What `foretell order` prints; writes the file in the order that is done soonest, and a
    picture, where asked to.

    ValueError for a file or profile that cannot be used.
    """
    found = judged(partial(read_lines, path), load_profile(profile_name))
    if ordered is not None:
        write_lines(path, found.soonest, ordered)
    if picture is not None:
        _draw(found.watched, picture)
    return found.found


def _draw(watched: dict[str, Watched], path: Path) -> None:
    """Shares of the time that computing and reading need, over time, for each order."""
    picture = figure(9.0, 4.5)
    axes = picture.subplots(len(watched), 1, sharex=True, sharey=True)
    for axis, (name, each) in zip(axes, watched.items(), strict=True):
        rows = np.array(each.steps)
        end_s = float(rows[-1, 0] + rows[-1, 1])
        places = np.minimum((_BINS * rows[:, 0] / end_s).astype(np.int64), _BINS - 1)
        total, compute, memory = (np.bincount(places, rows[:, i], _BINS) for i in (1, 2, 3))
        times = np.linspace(0.0, end_s, _BINS)
        axis.plot(times, compute / np.maximum(total, 1e-9), label="computing")
        axis.plot(times, memory / np.maximum(total, 1e-9), label="reading the KV cache")
        axis.set_ylabel(name)
    axes[0].legend(loc="upper right", fontsize=8)
    axes[0].set_title("Share of the time, simulated", fontsize=9)
    axes[-1].set_xlabel("seconds")
    save(picture, path)
