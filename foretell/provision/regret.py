"""How good decisions were, once it is known what came: the same time again with one instance less,
with as many as there were, and with one more.

The requests of the record arrive again, as long as answers really were, at twins of the engines
that there were. What differs between the three is the number of instances alone, all the time: what
gathers with one less in a busy time is still there in the calm time that follows.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from statistics import fmean

import numpy as np

from foretell.model import Slo
from foretell.provision.facts import AnsweredRequest
from foretell.provision.rollout import Coming, EngineKind, EnginePlace, Rollout

SLICE_S = 300.0
"""Instances are held to be wasted, or not, for so long at a time."""
FORECAST_S = 60.0
"""A forecast is compared with the arrivals of so many seconds."""
MOST_ARRIVALS = 100_000
"""Requests that are replayed at most; of more, the latest."""
MOST_PLACES = 512
"""Instances that have been there in the course of a window, at most."""


@dataclass(frozen=True, slots=True)
class Moment:
    """One decision: what was there, and what it predicted."""

    at_s: float
    ready: int
    """Instances that got requests."""
    instances: int
    """All that there were: warming and draining ones as well."""
    arrived: int
    """Requests since the moment before."""
    expected_rps: float | None = None
    """Requests a second that were expected `ahead_s` later; None: nothing was predicted."""
    ahead_s: float = 0.0
    predicted_within: float | None = None
    """The ratio within the targets that was predicted; None: nothing was."""


@dataclass(frozen=True, slots=True)
class RegretWindow:
    """What is known of the time from `begins_s` to `ends_s`."""

    begins_s: float
    ends_s: float
    moments: Sequence[Moment]
    """In their order; those before `begins_s` fill the engines, those after `ends_s` only tell
    whether forecasts were right."""
    answered: Sequence[AnsweredRequest]
    """In the order in which they ended."""


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of a window."""

    begins_s: float
    ends_s: float
    arrivals: int
    expected_rps: float | None
    """The mean of the forecasts for this time; None: there was none."""
    instances: float
    """The mean number that there was."""
    missed: tuple[int, int, int]
    """Requests outside their targets with one instance less, with as many as there were, and with
    one more."""
    wasted_instance_s: float
    """What one less would have saved, where it would have kept the targets; otherwise 0."""


@dataclass(frozen=True, slots=True)
class Regret:
    """What a window's decisions have cost, and how right they were. Ratios of requests that nobody
    sent are 1."""

    begins_s: float
    ends_s: float
    arrivals: int
    instance_s: float
    """Seconds of instances, warming and draining ones included."""
    wasted_instance_s: float
    """Those that one instance less would have saved in the slices in which it keeps the targets."""
    saved_by_one_more: int
    """Requests outside their targets that one instance more would have kept within them."""
    within: tuple[float, float, float]
    """Ratio within the targets with one instance less, as many as there were, and one more."""
    measured_within: float | None
    """The ratio of the sampled answers that really were within their targets; None: not known."""
    predicted_within: float | None
    """What decisions said of it, in the mean; None where the strategy does not say."""
    arrivals_error: float | None
    """Mean of |expected - arrived| over the mean of what arrived; None: there was no forecast."""
    arrivals_bias: float | None
    """Mean of expected - arrived over the mean of what arrived."""
    lengths_error: float | None
    """Sum of |expected - actual| output tokens of the sample over that of the actual ones."""
    slices: tuple[Slice, ...]


def regret(window: RegretWindow, kind: EngineKind, slo: Slo, enough: float) -> Regret | None:
    """The regret of a window on engines of one kind; `enough`: the ratio of requests that shall be
    within `slo`. None where the record holds no two decisions or no answer of that time. Equal
    arguments give equal results.

    Raises ValueError where instances came and went more often than `MOST_PLACES`.
    """
    window = _bounded(window)
    if len(window.moments) < 2 or not window.answered:
        return None
    coming = _coming(window, kind.config.max_model_len)
    begins_s = _slices(window)
    spans = [*pairwise([*begins_s, window.ends_s])]
    origin_s = window.moments[0].at_s
    replayed = []
    for change in (-1, 0, 1):
        places = _places(window.moments, change)
        rollout = Rollout(places, kind, slo, [at_s - origin_s for at_s in begins_s], coming)
        rollout.run()
        replayed.append(rollout)
    missed = [*zip(*(rollout.missed for rollout in replayed), strict=True)]
    judged = replayed[1].judged
    slices = tuple(
        _slice(window, span, count, three, enough)
        for span, count, three in zip(spans, judged, missed, strict=True)
    )
    total = sum(judged)
    sums = [sum(rollout.missed) for rollout in replayed]
    less, same, more = (1.0 - each / total if total else 1.0 for each in sums)
    error, bias = _forecast_errors(window)
    inside = [m for m in window.moments if window.begins_s <= m.at_s < window.ends_s]
    predicted = [m.predicted_within for m in inside if m.predicted_within is not None]
    return Regret(
        window.begins_s,
        window.ends_s,
        total,
        _instance_s(window.moments, window.begins_s, window.ends_s),
        sum(each.wasted_instance_s for each in slices),
        max(0, sums[1] - sums[2]),
        (less, same, more),
        _measured(window.answered, slo),
        fmean(predicted) if predicted else None,
        error,
        bias,
        _lengths_error(window.answered),
        slices,
    )


def _bounded(window: RegretWindow) -> RegretWindow:
    """The window from its first decision on, or from a later one where too many requests came."""
    moments, begins_s = list(window.moments), window.begins_s
    if moments:
        begins_s = max(begins_s, moments[0].at_s)
    total = 0
    for number in range(len(moments) - 1, -1, -1):
        total += moments[number].arrived if moments[number].at_s <= window.ends_s else 0
        if total > MOST_ARRIVALS:
            moments = moments[number:]
            begins_s = max(begins_s, moments[0].at_s)
            break
    if begins_s >= window.ends_s:
        moments = []
    return RegretWindow(begins_s, window.ends_s, moments, window.answered)


def _slices(window: RegretWindow) -> list[float]:
    """When each begins."""
    count = max(1, round((window.ends_s - window.begins_s) / SLICE_S))
    return [
        window.begins_s + (window.ends_s - window.begins_s) * index / count
        for index in range(count)
    ]


def _coming(window: RegretWindow, longest: int) -> list[Coming]:
    """The arrivals up to the window's end, in seconds from the first moment. Within the time
    between two decisions they come at random, always the same; the sample of answers is spread over
    them in its order."""
    draws = np.random.default_rng(0)
    origin_s, times_s = window.moments[0].at_s, []
    for before, moment in pairwise(window.moments):
        if moment.at_s <= window.ends_s:
            since_s, until_s = before.at_s - origin_s, moment.at_s - origin_s
            times_s += sorted(draws.uniform(since_s, until_s, moment.arrived).tolist())
    found = []
    for number, at_s in enumerate(times_s):
        answer = window.answered[number * len(window.answered) // len(times_s)]
        prompt = min(max(1, answer.prompt_tokens), longest - 1)
        found.append(Coming(at_s, prompt, max(1, min(answer.output_tokens, longest - prompt))))
    return found


def _places(moments: Sequence[Moment], change: int) -> list[EnginePlace]:
    """The instances that got requests, `change` more; where there were some, at least one."""
    origin_s, places = moments[0].at_s, []
    since_s: list[float] = []  # of those that are there
    for moment in moments:
        at_s = moment.at_s - origin_s
        ready = max(1, moment.ready + change) if moment.ready else max(0, change)
        while len(since_s) > ready:
            places.append(EnginePlace(None, since_s.pop(), at_s))
        since_s += [at_s] * (ready - len(since_s))
        if len(places) + len(since_s) > MOST_PLACES:
            raise ValueError(f"more than {MOST_PLACES} instances came and went")
    places += [EnginePlace(None, ready_s, inf) for ready_s in since_s]
    return places


def _spans(
    moments: Sequence[Moment], begins_s: float, ends_s: float
) -> Iterator[tuple[Moment, float]]:
    """Each moment, and for how many seconds of a time it was the latest one."""
    ends = [moment.at_s for moment in moments[1:]] + [inf]
    for moment, until_s in zip(moments, ends, strict=True):
        seconds = min(until_s, ends_s) - max(moment.at_s, begins_s)
        if seconds > 0:
            yield moment, seconds


def _instance_s(moments: Sequence[Moment], begins_s: float, ends_s: float) -> float:
    return sum(m.instances * seconds for m, seconds in _spans(moments, begins_s, ends_s))


def _slice(
    window: RegretWindow,
    span: tuple[float, float],
    arrivals: int,
    missed: tuple[int, ...],
    enough: float,
) -> Slice:
    begins_s, ends_s = span
    less, same, more = missed
    wasted_s = 0.0
    if less <= (1.0 - enough) * arrivals:
        spans = _spans(window.moments, begins_s, ends_s)
        wasted_s = sum(seconds for moment, seconds in spans if moment.ready > 1)
    expected = [
        m.expected_rps
        for m in window.moments
        if m.expected_rps is not None and begins_s <= m.at_s + m.ahead_s < ends_s
    ]
    return Slice(
        begins_s,
        ends_s,
        arrivals,
        fmean(expected) if expected else None,
        _instance_s(window.moments, begins_s, ends_s) / (ends_s - begins_s),
        (less, same, more),
        wasted_s,
    )


def _forecast_errors(window: RegretWindow) -> tuple[float | None, float | None]:
    """The mean error of the rates predicted for this window, absolute and with its sign, over the
    mean rate that came."""
    times_s = [moment.at_s for moment in window.moments]
    counts = np.cumsum([moment.arrived for moment in window.moments])
    pairs = []
    for moment in window.moments:
        begins_s = moment.at_s + moment.ahead_s
        if moment.expected_rps is None or not window.begins_s <= begins_s < window.ends_s:
            continue
        first = bisect_right(times_s, begins_s) - 1
        last = bisect_right(times_s, begins_s + FORECAST_S) - 1
        seconds = times_s[last] - times_s[first]
        if begins_s + FORECAST_S <= times_s[-1] and seconds > 0:
            pairs.append((moment.expected_rps, float(counts[last] - counts[first]) / seconds))
    came = fmean(rate for _, rate in pairs) if pairs else 0.0
    if came <= 0:
        return None, None
    errors = [expected - rate for expected, rate in pairs]
    return fmean(map(abs, errors)) / came, fmean(errors) / came


def _measured(answered: Sequence[AnsweredRequest], slo: Slo) -> float | None:
    known = [
        slo.met(each.ttft_s, (each.e2e_s - each.ttft_s) / max(1, each.output_tokens - 1))
        for each in answered
        if each.ttft_s > 0
    ]
    return fmean(known) if known else None


def _lengths_error(answered: Sequence[AnsweredRequest]) -> float | None:
    actual = sum(each.output_tokens for each in answered)
    wrong = sum(abs(each.expected_tokens - each.output_tokens) for each in answered)
    return wrong / actual if actual else None
