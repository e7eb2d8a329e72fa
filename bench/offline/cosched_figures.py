"""Echo's Figures 8 to 10 from the runs of `offline.cosched`, and the memory that its reserve keeps.

    python -m bench.offline.cosched_figures

reads results/cosched.json and writes results/cosched-course.svg; needs matplotlib.
"""

import json
from typing import Any

from bench.offline.cosched import BENCH, BLOCKS, DRAWN, LOADS
from bench.offline.course import Look
from foretell.tools.pictures import figure, save

_SMOOTH = 10
"""Seconds over which hit rates are taken together."""


def draw(numbers: dict[str, Any]) -> None:
    """Draw the courses of the contenders of `DRAWN` beside QA_Short, first seed."""
    courses = {
        run["contender"]: _columns(run["course"])
        for run in numbers["runs"]
        if "course" in run and run["load"] == LOADS[0]
    }
    shown = courses[DRAWN[-1]]
    picture = figure(10.5, 8.0)
    active, hits, memory, usual = picture.subplots(2, 2).flat
    active.plot(shown["at_s"], shown["online"], label="online")
    active.plot(shown["at_s"], shown["offline"], label="offline")
    active.set_ylabel("running requests")
    active.set_title(f"Figure 8: active requests ({DRAWN[-1]})")
    for name, course in courses.items():
        hits.plot(course["at_s"][_SMOOTH - 1 :], _hit_ratios(course), label=name)
    hits.set_ylabel("share of offline prompt tokens cached")
    hits.set_ylim(0, 1)
    hits.set_title("Figure 9: hit rate of the prefix cache")
    kinds = ("held_online", "held_offline", "left_online", "left_offline")
    labels = ("online, running", "offline, running", "online, left", "offline, left")
    shares = [[each / BLOCKS for each in shown[kind]] for kind in kinds]
    memory.stackplot(shown["at_s"], *shares, labels=labels)
    memory.set_ylabel("share of the KV cache")
    memory.set_ylim(0, 1)
    memory.set_title(f"Figure 10: memory by class ({DRAWN[-1]})")
    usual.plot(shown["at_s"], shown["held_online"], label="held by online requests")
    usual.plot(shown["at_s"], shown["usual_online"], label="estimate: mean + 2 deviations")
    usual.set_ylabel("KV blocks")
    usual.set_title("as Figure 11, of memory: what is kept for bursts")
    for axis in (active, hits, memory, usual):
        axis.set_xlabel("virtual time, s")
        axis.legend(fontsize="small")
    save(picture, BENCH.result("-course.svg"))


def _columns(rows: list[list[float]]) -> dict[str, list[float]]:
    return {name: [row[place] for row in rows] for place, name in enumerate(Look._fields)}


def _hit_ratios(course: dict[str, list[float]]) -> list[float]:
    found = []
    for end in range(_SMOOTH, len(course["hits"]) + 1):
        looked_up = sum(course["looked_up"][end - _SMOOTH : end])
        found.append(sum(course["hits"][end - _SMOOTH : end]) / looked_up if looked_up else 0.0)
    return found


if __name__ == "__main__":
    draw(json.loads(BENCH.result(".json").read_text()))
