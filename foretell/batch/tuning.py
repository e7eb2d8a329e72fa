"""Tuning values of batches. No paper gives them; docs/adr/0010-cosched.md has results."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReleaseTuning:
    """How the number of offline requests in flight follows the predicted TTFT."""

    growth: float = 1.1
    """Factor by which a window grows at a look, at most."""
    least_step: float = 1.0
    """Requests by which it may always grow."""
    decrease: float = 0.7
    """Share of it that is kept at a look, at least."""
    slower_below: float = 0.2
    """It grows more slowly once the mean is closer to its bound than this share of the bound."""
    queue_ratio: float = 0.125
    """An engine has a queue if more than one and this share of its running requests wait."""
    slots_ratio: float = 0.9
    """Share of an engine's `max_num_seqs` that offline requests may take."""
    mean_of_looks: int = 5
    """Looks that a prediction is averaged over: it varies with the step in flight."""
    known_by_looks: int = 40
    """Looks that the TTFT at one number of requests is averaged over, at most."""
    spread_of_looks: int = 400
    """Looks that the spread of predictions is taken from."""
    fewest_for_spread: int = 50
    """Looks below which `usual_spread` counts instead."""
    usual_spread: float = 1.5
    """The spread (a quantile of predictions over their mean) before it is known."""
    in_time_ratio: float = 0.99
    """Share of the latest looks that would be in time, with a target."""
    between_looks: float = 1.1
    """Margin for requests that arrive between two looks: they are predicted less well."""
    spacing_ratio: float = 0.8
    """The gap between two sends, as a share of the time between two ends in a full window."""
    longest_gap_s: float = 0.05
    """Longest pause between two requests that are sent."""
    at_once: int = 2
    """Requests that may follow each other without a pause."""
    smoothing: float = 0.1
    """Weight of the latest request's duration in the moving average of durations."""


@dataclass(frozen=True, slots=True)
class PromiseTuning:
    """How the end of a batch is predicted."""

    intervals: int = 180
    """Intervals whose pace is remembered."""
    least_intervals: int = 3
    """Intervals before anything is predicted."""
    least_ended: int = 10
    """Ended requests that are needed before anything is predicted."""
    steady_ratio: float = 0.1
    """If requests in flight grow by less in an interval, their number counts as steady."""
    steady_s: float = 30.0
    """How long a deviation of the pace lasts: online load, its cause, changes slowly."""
    least_ratio: float = 0.02
    """The smallest deviation of a prediction, as a share of the expected time."""
    corrected_by: int = 50
    """Latest batches by whose errors a promise is corrected."""
    few_factor: float = 2.0
    """The factor on the largest error while too few batches have ended for the quantile."""
    least_expected_s: float = 1.0
    """Batches that are expected to take less count as this long."""


RELEASE = ReleaseTuning()
PROMISE = PromiseTuning()
