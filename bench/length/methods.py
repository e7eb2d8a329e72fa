"""What can be made of a base model's distributions of lengths, from little to all of it."""

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from foretell.length.adapt import Adapter
from foretell.length.bins import BINS, below_at, bin_at, share_of_bin
from foretell.length.experience import Experience
from foretell.length.recalibration import Recalibration
from foretell.length.shift import Shift

Floats = NDArray[np.float64]

_PRIOR_ANSWERS = 20.0


class Method(Protocol):
    """What makes a distribution of the base's, and learns; rows of (`BINS`,).

    `seen`: the request's standardised features.
    """

    def adjust(self, base: Floats, group: str, seen: Floats) -> Floats:
        """The distribution for a request."""

    def observe(self, base: Floats, tokens: int, censored: bool, group: str, seen: Floats) -> None:
        """Its answer."""


class Unchanged:
    """The base as it is."""

    def adjust(self, base: Floats, group: str, seen: Floats) -> Floats:
        return base

    def observe(self, base: Floats, tokens: int, censored: bool, group: str, seen: Floats) -> None:
        pass


class OwnAnswers:
    """What the serving model has answered before, whatever the request."""

    def __init__(self) -> None:
        self._seen = Experience(BINS)

    def adjust(self, base: Floats, group: str, seen: Floats) -> Floats:
        return _steps(self._seen.below(below_edges(base), _PRIOR_ANSWERS))

    def observe(self, base: Floats, tokens: int, censored: bool, group: str, seen: Floats) -> None:
        own = bin_at(tokens)
        self._seen.forget()
        if censored:
            self._seen.cut(own, share_of_bin(own, tokens - 1))
        else:
            self._seen.end(own)


class Moved:
    """The base moved, and recalibrated where that is wanted."""

    def __init__(self, recalibrated: bool) -> None:
        self._shift = Shift()
        self._recalibration = Recalibration() if recalibrated else None

    def adjust(self, base: Floats, group: str, seen: Floats) -> Floats:
        moved = self._moved(base)
        return _steps(self._recalibration.correct(moved) if self._recalibration else moved)

    def observe(self, base: Floats, tokens: int, censored: bool, group: str, seen: Floats) -> None:
        moved = self._moved(base)
        if self._recalibration:
            lower, upper = below_at(moved, np.array([tokens - 1.0, tokens])).tolist()
            if censored:
                self._recalibration.cut(lower)
            else:
                self._recalibration.end(lower, upper)
        if censored:
            self._shift.cut(base, moved, tokens)
        else:
            self._shift.end(base, tokens)

    def _moved(self, base: Floats) -> Floats:
        return np.asarray(self._shift.move(base[None, :], below_edges(base)[None, :])[0])


class Adapted:
    """All of it, with or without what can be seen of requests."""

    def __init__(self, regressed: bool) -> None:
        self._adapter = Adapter()
        self._regressed = regressed

    def adjust(self, base: Floats, group: str, seen: Floats) -> Floats:
        return self._adapter.adjust("model", base, group, seen if self._regressed else None)

    def observe(self, base: Floats, tokens: int, censored: bool, group: str, seen: Floats) -> None:
        shown = seen if self._regressed else None
        self._adapter.observe("model", base, tokens, censored, group, shown)


def below_edges(row: Floats) -> Floats:
    below = row.cumsum()
    below[-1] = 1.0
    return below


def _steps(below: Floats) -> Floats:
    return np.maximum(np.diff(below, prepend=0.0), 0.0)


METHODS: dict[str, Callable[[], Method]] = {
    "base": Unchanged,
    "own answers": OwnAnswers,
    "moved": lambda: Moved(recalibrated=False),
    "moved, recalibrated": lambda: Moved(recalibrated=True),
    "adapted, features unseen": lambda: Adapted(regressed=False),
    "adapted": lambda: Adapted(regressed=True),
}
