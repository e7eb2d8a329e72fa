"""What the room that a request takes is worth to later requests."""

from collections.abc import Sequence
from statistics import fmean

from foretell.model import Load, Prediction

_ALIKE = 1.1
"""Engines with equal seats are of one kind if each has at most this factor times the blocks of the
next smaller one: vLLM measures how many KV blocks fit, with different results on equal GPUs."""
_LOOKS = 4
"""The price is proportional to the probability that this many requests all find no room."""


def free_share(load: Load) -> float:
    """Return the smaller of the free shares of an engine's seats and KV blocks, in [0, 1]."""
    seats = load.requests / max(1, load.max_num_seqs)
    blocks = (load.used_blocks + load.waiting_prefill_blocks) / max(1, load.total_blocks)
    return max(0.0, 1.0 - max(seats, blocks))


def kinds(known: Sequence[Prediction]) -> list[list[Prediction]]:
    """Group engines with equal seats and similar numbers of blocks."""
    found: list[list[Prediction]] = []
    last: Load | None = None
    for answer in sorted(known, key=lambda a: (a.load.max_num_seqs, a.load.total_blocks)):
        load = answer.load
        alike = (
            last is not None
            and load.max_num_seqs == last.max_num_seqs
            and load.total_blocks <= _ALIKE * last.total_blocks
        )
        if not alike:
            found.append([])
        found[-1].append(answer)
        last = load
    return found


def prices_s(of_kinds: Sequence[Sequence[Prediction]]) -> dict[str, float]:
    """Return by `instance_id` what taking room there costs later requests, in seconds, beyond the
    price of the cheapest kind of engine.

    A larger or faster engine is the best for nearly every request, until it is full and preempts
    while smaller ones have room: a forecast for one request does not show that others will come.
    The price is the mean predicted e2e latency times the mean occupied share of the engines of one
    kind to the power of `_LOOKS`: the probability that this many requests, each looking at one
    engine of that kind, find no room. All engines of a kind have the same price, since their
    predictions differ anyway; if all engines are of one kind, the prices are 0.
    """
    if not of_kinds:
        return {}
    lasts_s = fmean([answer.e2e_s for kind in of_kinds for answer in kind])
    found = {}
    for kind in of_kinds:
        price_s = lasts_s * fmean([1.0 - free_share(answer.load) for answer in kind]) ** _LOOKS
        found.update({answer.instance_id: price_s for answer in kind})
    least_s = min(found.values())
    return {instance_id: price_s - least_s for instance_id, price_s in found.items()}
