"""A picture of what was tried."""

from pathlib import Path

from foretell.tools.pictures import figure, save
from foretell.tools.tune.run import Tuned
from foretell.tools.tune.search import MEASURES

_ROW_INCHES = 0.3


def draw(tuned: Tuned, path: Path) -> None:
    """The goal's ratio and its interval for every change that was tried; .svg or .png."""
    goal = tuned.tune.goal
    rows = [
        (str(trial.setup[-1]), len(each.on.setup), trial.against(each.on, goal))
        for each in tuned.found.rounds
        for trial in each.trials
    ]
    picture = figure(9.0, 1.2 + _ROW_INCHES * len(rows))
    axis = picture.subplots()
    for place, (_, depth, found) in enumerate(rows):
        axis.plot([found.low, found.high], [place, place], color=f"C{depth}", linewidth=2)
        axis.plot(found.ratio, place, "o", color=f"C{depth}")
    axis.axvline(1.0, color="0.7", linewidth=0.8)
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter("{x:g}")
    axis.set_yticks(range(len(rows)), [name for name, _, _ in rows])
    axis.set_ylim(len(rows) - 0.5, -0.5)
    axis.set_xlabel(f"{MEASURES[goal].title}, ratio to before; 95% interval over seeds")
    picture.suptitle("Simulated; each colour on top of what the one before kept", fontsize="medium")
    save(picture, path)
