"""What the room that a request takes is worth to those who come later."""

from collections.abc import Sequence
from statistics import fmean

from foretell.model import Load, Prediction

_ALIKE = 1.1
"""vLLM measures how many KV blocks fit, and finds some more or fewer on equal GPUs: of engines with
equal seats, one with up to so many times the blocks of the next smaller one is of the same kind."""
_LOOKS = 4
"""The price is the chance that so many requests find no room."""


def free_share(load: Load) -> float:
    """The share of an engine that nobody has, neither seats nor KV blocks, in [0, 1]."""
    seats = load.requests / max(1, load.max_num_seqs)
    blocks = (load.used_blocks + load.waiting_prefill_blocks) / max(1, load.total_blocks)
    return max(0.0, 1.0 - max(seats, blocks))


def prices_s(known: Sequence[Prediction]) -> dict[str, float]:
    """By `instance_id`: what taking room there costs those who come later, in seconds, beyond the
    kind of engine where it costs the least.

    A larger or faster engine is the best one for nearly everybody, until it is full and somebody is
    preempted, while smaller ones have room: no forecast for one request shows that others will
    come. The price is as long as requests last, times the mean occupied share of the engines of one
    kind to the power of `_LOOKS`: the chance that as many requests look at engines of that kind,
    one each, and find no room. Engines of one kind differ by their predictions, so all of
    them have one price, and there is none where all are of one kind.
    """
    if not known:
        return {}
    lasts_s = fmean([answer.e2e_s for answer in known])
    found = {}
    for kind in _kinds(known):
        price_s = lasts_s * fmean([1.0 - free_share(answer.load) for answer in kind]) ** _LOOKS
        found.update({answer.instance_id: price_s for answer in kind})
    least_s = min(found.values())
    return {instance_id: price_s - least_s for instance_id, price_s in found.items()}


def _kinds(known: Sequence[Prediction]) -> list[list[Prediction]]:
    """Engines with equal seats and about as many blocks."""
    kinds: list[list[Prediction]] = []
    last: Load | None = None
    for answer in sorted(known, key=lambda a: (a.load.max_num_seqs, a.load.total_blocks)):
        load = answer.load
        alike = (
            last is not None
            and load.max_num_seqs == last.max_num_seqs
            and load.total_blocks <= _ALIKE * last.total_blocks
        )
        if not alike:
            kinds.append([])
        kinds[-1].append(answer)
        last = load
    return kinds
