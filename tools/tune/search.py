"""Which changes to an engine's flags make a trace's latencies better: the search itself.

Every change is tried alone, the best one is kept, and the others are tried again on top of it,
until none helps. Setups are compared seed by seed, with equal arrivals; a change helps if the 95%
interval of its gain excludes zero. As the best of many tries looks better than it is, what was
found is measured once more with seeds that the search has not seen.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from foretell.tools.intervals import mean_ratio_interval
from foretell.tools.simulate.options import SimulateOptions
from foretell.tools.tune.options import Goal

MOST_ROUNDS = 4
_LEAST = 1e-6  # seconds, or a ratio: what a ratio is formed with where nothing was measured

Measures = Mapping[str, float]
"""What one simulation measured, by the names of `MEASURES` and others."""


@dataclass(frozen=True, slots=True)
class Measure:
    """Something that may become better or worse."""

    name: str
    title: str
    more_is_better: bool = False


MEASURES = {
    measure.name: measure
    for measure in (
        Measure("ttft_mean", "mean TTFT"),
        Measure("ttft_p99", "P99 TTFT"),
        Measure("e2e_mean", "mean e2e"),
        Measure("e2e_p99", "P99 e2e"),
        Measure("tpot_p99", "P99 TPOT"),
        Measure("goodput", "within targets", more_is_better=True),
    )
}


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """One way to set one flag."""

    kind: str
    """The flag's name; a setup has one change of a kind."""
    apply: Callable[[SimulateOptions], SimulateOptions]
    engine_flags: tuple[str, ...] = ()
    """What vLLM's command line gets, for each group of engines; empty: nothing."""
    cluster_fields: Mapping[str, str | float] | None = None
    """What the cluster file gets, by the fields' paths."""
    note: str = ""
    """What to know before it is made."""

    def __str__(self) -> str:
        """What is set, in short: a field of the cluster file, or else the flag."""
        if self.cluster_fields:
            return ", ".join(f"{k.split('.')[-1]} {v}" for k, v in self.cluster_fields.items())
        return " / ".join(dict.fromkeys(self.engine_flags))


Setup = tuple[Change, ...]
"""The changes that are made; none: everything as it is."""
Simulate = Callable[[Sequence[tuple[Setup, int]]], list[Measures]]
"""What simulations of setups with seeds measure, in their order."""


@dataclass(frozen=True, slots=True)
class Interval:
    """The mean over seeds over another setup's, with its 95% interval; 1 is no change. A ratio of
    means, for what counts is what changes under load; other seeds may not change at all."""

    ratio: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Trial:
    """What a setup measured, seed by seed."""

    setup: Setup
    measured: tuple[Measures, ...]

    def mean(self, name: str) -> float:
        """The mean of a measure over the seeds; 0 where there is none."""
        return sum(found.get(name, 0.0) for found in self.measured) / len(self.measured)

    def against(self, other: "Trial", name: str) -> Interval:
        """How a measure changes from `other` to this one."""
        mine, others = (
            [max(_LEAST, found[name]) for found in trial.measured] for trial in (self, other)
        )
        return Interval(*mean_ratio_interval(mine, others))


@dataclass(frozen=True, slots=True)
class Judge:
    """What counts as better."""

    goal: Goal
    tolerance: float
    """Differences up to this ratio do not matter; 0.03 is 3%."""

    def gains(self, trial: Trial, reference: Trial) -> bool:
        """Whether the goal becomes better, by more than the tolerance and by more than chance."""
        return self._better(self.goal, trial, reference)

    def worse(self, trial: Trial, reference: Trial) -> list[str]:
        """Measures that become worse by more than the tolerance, and by more than chance."""
        others = (name for name in known(reference) if name != self.goal)
        return [name for name in others if self._better(name, reference, trial)]

    def helps(self, trial: Trial, reference: Trial) -> bool:
        """Whether the goal gains and nothing else loses."""
        return self.gains(trial, reference) and not self.worse(trial, reference)

    def verdict(self, trial: Trial, reference: Trial) -> str:
        """In a word or two; empty where chance may be all there is."""
        if self.gains(trial, reference):
            lost = [MEASURES[name].title for name in self.worse(trial, reference)]
            return f"worsens {', '.join(lost)}" if lost else "gains"
        return "loses" if self._better(self.goal, reference, trial) else ""

    def badness(self, trial: Trial, reference: Trial) -> float:
        """Lower is better."""
        ratio = trial.against(reference, self.goal).ratio
        return 1.0 / ratio if MEASURES[self.goal].more_is_better else ratio

    def _better(self, name: str, trial: Trial, reference: Trial) -> bool:
        """Whether a measure is better in `trial` than in `reference`."""
        if MEASURES[name].more_is_better:
            trial, reference = reference, trial
        found = trial.against(reference, name)
        return found.high < 1.0 and found.ratio < 1.0 / (1.0 + self.tolerance)


def known(trial: Trial) -> list[str]:
    """The measures that there are."""
    return [name for name in MEASURES if all(name in found for found in trial.measured)]


@dataclass(frozen=True, slots=True)
class Round:
    """Changes tried on top of a setup."""

    on: Trial
    trials: tuple[Trial, ...]
    kept: Trial | None
    """The one that the next round builds on; None: none helps."""


@dataclass(frozen=True, slots=True)
class Found:
    """All that was tried, and what it says."""

    rounds: tuple[Round, ...]
    before: Trial
    """Everything as it is, with the seeds of the confirmation where there was one."""
    after: Trial
    """What the search chose, with the same seeds; `before` where it chose nothing."""
    confirmed: bool
    """Whether it helps with those seeds too. If not, everything is best left as it is."""


def search(
    changes: Sequence[Change],
    simulate: Simulate,
    judge: Judge,
    seeds: Sequence[int],
    fresh_seeds: Sequence[int],
    possible: Callable[[Setup], bool] = lambda setup: True,
) -> Found:
    """Try `changes`, those with the least consequences first, with `seeds`, and confirm what was
    chosen with `fresh_seeds`. Setups that are not `possible` are left out.

    ValueError where the goal is not measured.
    """
    (base,) = _tried([()], simulate, seeds)
    if judge.goal not in known(base):
        raise ValueError(f"{MEASURES[judge.goal].title} cannot be the goal: no request has targets")
    rounds: list[Round] = []
    kept: Trial | None = base
    while kept is not None and len(rounds) < MOST_ROUNDS:
        on = kept
        made = {change.kind for change in on.setup}
        setups = [(*on.setup, change) for change in changes if change.kind not in made]
        trials = _tried([setup for setup in setups if possible(setup)], simulate, seeds)
        kept = _best(trials, on, base, judge)
        rounds.append(Round(on, tuple(trials), kept))
    chosen = rounds[-1].kept or rounds[-1].on
    if not chosen.setup:
        return Found(tuple(rounds), base, base, confirmed=False)
    before, after = _tried([(), chosen.setup], simulate, fresh_seeds)
    return Found(tuple(rounds), before, after, judge.helps(after, before))


def _tried(setups: Sequence[Setup], simulate: Simulate, seeds: Sequence[int]) -> list[Trial]:
    found = iter(simulate([(setup, seed) for setup in setups for seed in seeds]))
    return [Trial(setup, tuple(next(found) for _ in seeds)) for setup in setups]


def _best(trials: Sequence[Trial], on: Trial, base: Trial, judge: Judge) -> Trial | None:
    """The first that no other beats by more than chance: the least change that will do."""
    helping = [t for t in trials if judge.helps(t, on) and judge.helps(t, base)]
    if not helping:
        return None
    best = min(helping, key=lambda trial: judge.badness(trial, on))
    return next(trial for trial in helping if trial is best or not judge.gains(best, trial))
