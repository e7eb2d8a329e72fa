"""Finds the first step at which the twin and the installed vLLM's scheduler differ.

Needs a Python that has vLLM. `python -m foretell.tools.verify.compare SEED MODE [KIND]`
prints what both do with one scenario, step by step.
"""

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from foretell.engine.replay import replay
from foretell.engine.scenario import parse_scenario
from foretell.tools.verify import recorder
from foretell.tools.verify.features import Feature
from foretell.tools.verify.installed import (
    KNOWS_ENCODING,
    PASSES_OVER_IN_PLACE,
    PUTS_OFF,
    as_installed,
)
from foretell.tools.verify.scenarios import MODES, random_scenario


@dataclass(frozen=True)
class Finding:
    """The finding about one feature."""

    name: str
    verdict: str
    """`equal`, `approximated` or `different`."""
    scenarios: int = 0
    steps: int = 0
    reason: str = ""
    """Why it is approximated."""
    first: "Difference | None" = None


@dataclass(frozen=True)
class Difference:
    """Where twin and vLLM first differ."""

    mode: str
    seed: int
    step: int
    what: str
    """The key of the replay format."""
    twin: Any
    vllm: Any


def compare(feature: Feature, seeds: Iterable[int]) -> Finding:
    """Run the scenarios of a feature until one differs."""
    if reason := _not_modelled(feature):
        return Finding(feature.name, "approximated", reason=reason)
    scenarios = steps = 0
    for seed in seeds:
        for mode in MODES:
            scenarios += 1
            for made in _steps(feature, seed, mode):
                steps += 1
                if made is not None:
                    return Finding(feature.name, "different", scenarios, steps, first=made)
    return Finding(feature.name, "equal", scenarios, steps)


def same(ours: Any, theirs: Any) -> bool:
    """Whether two records are equal; the order of what was scheduled counts, too."""
    return bool(ours == theirs and list(ours["sched"] or ()) == list(theirs["sched"] or ()))


def _not_modelled(feature: Feature) -> str:
    if "images" in feature.kind and not KNOWS_ENCODING:
        return "this version has another encoder cache"
    if feature.sets.get("prefill_schedule_interval") and not PUTS_OFF:
        return "this version puts no prompts off"
    if feature.kind in {"loras", "grammars"} and not PASSES_OVER_IN_PLACE:
        return "in this version those who are passed over go before all others"
    return ""


def _steps(feature: Feature, seed: int, mode: str) -> Iterator[Difference | None]:
    """For each step None, or the difference that ends the comparison."""
    scenario = parse_scenario(as_installed(feature.scenario(seed, mode)))
    step = -1
    try:
        for ours, theirs in zip_longest(replay(scenario), recorder.record(scenario)):
            if ours is not None and theirs is not None and same(ours, theirs):
                step = theirs["step"]
                yield None
                continue
            yield Difference(mode, seed, step + 1, *_what(ours or {}, theirs or {}))
            return
    except Exception as error:
        # An unknown version may raise anything, and so may the twin if it cannot follow vLLM.
        yield Difference(mode, seed, step + 1, type(error).__name__, None, str(error)[:200])


def _what(ours: dict[str, Any], theirs: dict[str, Any]) -> tuple[str, Any, Any]:
    for key in theirs or ours:
        mine, real = ours.get(key), theirs.get(key)
        if mine != real or (key == "sched" and list(mine or ()) != list(real or ())):
            return key, mine, real
    return "step", ours, theirs


def show(seed: str, mode: str, kind: str = "full") -> None:
    """Print the scenario, and the records of the twin and of vLLM, a line of JSON each."""
    given = as_installed(random_scenario(int(seed), mode, kind))
    scenario = parse_scenario(given)
    lines = zip_longest(replay(scenario), recorder.record(scenario))
    print(json.dumps(given))  # noqa: T201  the command's output
    for ours, theirs in lines:
        print(json.dumps({"twin": ours}), json.dumps({"vllm": theirs}), sep="\n")  # noqa: T201


if __name__ == "__main__":
    show(*sys.argv[1:])
