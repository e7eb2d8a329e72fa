"""Adapt a base model's length distributions to the answers of each serving model.

A base model is trained on one serving model's answers. Another may answer at twice the length, and
get other requests. For each request five distributions are mixed, weighted by how well they have
predicted the serving model's latest answers: the base's own; the base's, moved to where the answers
were (`Shift`); the model's answers (`Experience`); its answers to this group of requests; and the
regression of its answers on the features of requests (`Regression`). The mixture is wider than its
parts, so it is recalibrated in the end (`Recalibration`). No step needs offline training.

Requests that are not plain, such as those that must follow a schema, start from the distribution
adapted to plain requests, and only the difference is learned for their kind. Their answers teach
nothing about plain requests.
"""

import math

import numpy as np
from numpy.typing import NDArray

from foretell.kernel.compiled import differences
from foretell.length.bins import BINS, bin_at, share_of_bin
from foretell.length.conversation import PLAIN, Kind
from foretell.length.experience import Experience
from foretell.length.recalibration import Recalibration
from foretell.length.regression import Regression
from foretell.length.shift import Shift

Floats = NDArray[np.float64]

MAX_MODELS = 64
MAX_GROUPS = 64
"""Groups that are kept for one kind of a model's requests."""
_PRIOR_ANSWERS = 20.0  # weight of the moved base beside the answers of a model or a group
_BASE, _MOVED, _MODEL, _GROUP, _REGRESSED = range(5)  # parts of the mixture
_RATE = 0.3  # of learning from a likelihood; below 1 because all parts may be wrong
_KEPT = 0.98  # share of the learned log weights that is kept from one answer to the next
_LEAST_LIKELIHOOD = 1e-4


class Adapter:
    """Adapted distributions per serving model; unchanged for a model that was never observed.

    Memory is bounded: the least recently observed models, and groups of a model, are evicted.
    Deterministic; not thread-safe.
    """

    def __init__(self, max_models: int = MAX_MODELS, max_groups: int = MAX_GROUPS) -> None:
        if min(max_models, max_groups) < 1:
            raise ValueError("max_models, max_groups: must be positive")
        self._max_models = max_models
        self._max_groups = max_groups
        self._models: dict[str, dict[Kind, _Learnt]] = {}  # least recently observed first

    def adjust(
        self,
        model_name: str,
        probabilities: Floats,
        group: str = "",
        seen: Floats | None = None,
        kind: Kind = PLAIN,
    ) -> Floats:
        """The base's `probabilities`, (`BINS`,) or (n, `BINS`), adapted to `model_name`.

        Rows add up to 1. `group`: requests whose answers are alike, such as one tenant's or those
        with one system prompt; "" is none. `seen`: standardised features of the requests,
        (features,) or (n, features), as many as `observe` gets; None: not known.
        """
        adjusted = self._plain(model_name, probabilities, group, seen)
        if kind != PLAIN:
            adjusted = self._adjusted(model_name, kind, adjusted, group, seen)
        return adjusted

    def observe(
        self,
        model_name: str,
        probabilities: Floats,
        output_tokens: int,
        censored: bool = False,
        group: str = "",
        seen: Floats | None = None,
        kind: Kind = PLAIN,
    ) -> None:
        """Learn from one answer for which the base predicted `probabilities`, (`BINS`,).

        `censored`: something other than the model ended it, so its own length is at least
        `output_tokens`. An answer without a token says nothing about length and is ignored.
        """
        if output_tokens <= 0:
            return
        if kind != PLAIN:
            probabilities = self._plain(model_name, probabilities, group, seen)
        kinds = self._models.pop(model_name, {})
        self._models[model_name] = kinds
        if len(self._models) > self._max_models:
            del self._models[next(iter(self._models))]
        if kind not in kinds:
            kinds[kind] = _Learnt(self._max_groups)
        rows = None if seen is None else seen[None, :]
        kinds[kind].observe(probabilities[None, :], output_tokens, censored, group, rows)

    def _plain(
        self, model_name: str, probabilities: Floats, group: str, seen: Floats | None
    ) -> Floats:
        return self._adjusted(model_name, PLAIN, probabilities, group, seen)

    def _adjusted(
        self,
        model_name: str,
        kind: Kind,
        probabilities: Floats,
        group: str,
        seen: Floats | None,
    ) -> Floats:
        learnt = self._models.get(model_name, {}).get(kind)
        if learnt is None:
            return probabilities
        rows = None if seen is None else np.atleast_2d(seen)
        adjusted = learnt.adjust(np.atleast_2d(probabilities), group, rows)
        return adjusted.reshape(probabilities.shape)


class _Learnt:
    """What was learned about one kind of a serving model's requests.

    Distributions inside are cumulative: (n, `BINS`) of P(length <= upper edge) of each bin.
    """

    __slots__ = (
        "_groups", "_max_groups", "_recalibration", "_regression", "_shift", "_weights", "_whole",
    )  # fmt: skip

    def __init__(self, max_groups: int) -> None:
        self._max_groups = max_groups
        self._shift = Shift()
        self._whole = Experience(BINS)
        self._groups: dict[str, Experience] = {}  # least recently observed first
        self._regression: Regression | None = None
        self._weights = _Weights()
        self._recalibration = Recalibration()

    def adjust(self, probabilities: Floats, group: str, seen: Floats | None) -> Floats:
        """Adjusted `probabilities`, (n, `BINS`); `seen` (n, features)."""
        parts = self._parts(probabilities, group, seen)
        mixed = np.zeros(probabilities.shape)
        for weight, part in zip(self._weights.of(list(parts)), parts.values(), strict=True):
            mixed += weight * part
        adjusted = self._recalibration.correct(mixed)
        differences(adjusted)
        return adjusted

    def observe(
        self, probabilities: Floats, tokens: int, censored: bool, group: str, seen: Floats | None
    ) -> None:
        """`probabilities`: (1, `BINS`); `seen` (1, features)."""
        if seen is not None and self._regression is None:
            self._regression = Regression(seen.shape[1])
        parts = self._parts(probabilities, group, seen)
        own = bin_at(tokens)
        share = share_of_bin(own, tokens - 1)
        before = [float(part[0, own - 1]) if own else 0.0 for part in parts.values()]
        inside = [
            float(part[0, own]) - below for part, below in zip(parts.values(), before, strict=True)
        ]
        weights = self._weights.of(list(parts))
        mixed_before, mixed_inside = _dot(weights, before), _dot(weights, inside)
        lower = mixed_before + share * mixed_inside
        if censored:
            likelihoods = [
                1.0 - below - share * within for below, within in zip(before, inside, strict=True)
            ]
            self._recalibration.cut(lower)
        else:
            likelihoods = inside
            upper = mixed_before + share_of_bin(own, tokens) * mixed_inside
            self._recalibration.end(lower, upper)
        self._weights.learn(dict(zip(parts, likelihoods, strict=True)))
        self._count(own, share, censored, group)
        if censored:
            self._shift.cut(probabilities[0], parts[_MOVED][0], tokens)
        else:
            self._shift.end(probabilities[0], tokens)
        if self._regression is not None and seen is not None:
            self._regression.observe(probabilities[0], seen[0], tokens, censored)

    def _parts(self, probabilities: Floats, group: str, seen: Floats | None) -> dict[int, Floats]:
        """The parts of the mixture that exist for these requests."""
        base = probabilities.cumsum(axis=1)
        base[:, -1] = 1.0
        moved = self._shift.move(probabilities, base)
        whole = self._whole.below(moved, _PRIOR_ANSWERS)
        parts = {_BASE: base, _MOVED: moved, _MODEL: whole}
        if group in self._groups:
            parts[_GROUP] = self._groups[group].below(moved, _PRIOR_ANSWERS)
        if self._regression is not None and seen is not None:
            parts[_REGRESSED] = self._regression.below(probabilities, seen)
        return parts

    def _count(self, own: int, share: float, censored: bool, group: str) -> None:
        counts = [self._whole]
        if group:
            of_group = self._groups.pop(group, None) or Experience(BINS)
            self._groups[group] = of_group
            if len(self._groups) > self._max_groups:
                del self._groups[next(iter(self._groups))]
            counts.append(of_group)
        for experience in counts:
            experience.forget()
            if censored:
                experience.cut(own, share)
            else:
                experience.end(own)


class _Weights:
    """Weights of the parts of a mixture: products of their likelihoods, with forgetting (Raftery et
    al., 2010)."""

    __slots__ = ("_logs",)

    def __init__(self) -> None:
        self._logs = [0.0] * 5

    def of(self, parts: list[int]) -> list[float]:
        """The weights of these parts, scaled to a sum of 1."""
        weights = [math.exp(self._logs[part]) for part in parts]
        whole = sum(weights)
        return [weight / whole for weight in weights]

    def learn(self, likelihoods: dict[int, float]) -> None:
        """Learn from the likelihoods of some parts; the sum of their weights stays as it is."""
        known = {part: self._logs[part] for part in likelihoods}
        learnt = {
            part: known[part] + _RATE * math.log(max(likelihood, _LEAST_LIKELIHOOD))
            for part, likelihood in likelihoods.items()
        }
        kept = math.log(sum(map(math.exp, known.values())) / sum(map(math.exp, learnt.values())))
        for part, log in learnt.items():
            self._logs[part] = log + kept
        self._logs = [_KEPT * log for log in self._logs]


def _dot(weights: list[float], values: list[float]) -> float:
    return sum(weight * value for weight, value in zip(weights, values, strict=True))
