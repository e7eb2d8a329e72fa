"""A picture of what was tried."""

from pathlib import Path

from tools.pictures import figure, save
from tools.tune.run import Tuned
from tools.tune.search import MEASURES

_ROW_INCHES = 0.3


def draw(tuned: Tuned, path: Path) -> None:
    """The goal's change and its interval for every change that was tried; .svg or .png."""
    goal = tuned.tune.goal
    rows = [
        (f"{trial.setup[-1]}", len(each.on.setup), trial.against(each.on, goal))
        for each in tuned.found.rounds
        for trial in each.trials
    ]
    picture = figure(9.0, 1.2 + _ROW_INCHES * len(rows))
    axis = picture.subplots()
    for place, (_, depth, found) in enumerate(rows):
        centre, low, high = (100 * (value - 1) for value in (found.ratio, found.low, found.high))
        axis.plot([low, high], [place, place], color=f"C{depth}", linewidth=2)
        axis.plot(centre, place, "o", color=f"C{depth}")
    axis.axvline(0, color="0.7", linewidth=0.8)
    axis.set_yticks(range(len(rows)), [name for name, _, _ in rows])
    axis.invert_yaxis()
    axis.set_xlabel(f"change of {MEASURES[goal].title}, %, with its 95% interval over seeds")
    picture.suptitle(
        "Simulated; a colour for each round, on top of what the ones before kept",
        fontsize="medium",
    )
    save(picture, path)
