"""What recent answers say about the length of the next one."""

import math
from array import array

from foretell.length.survival import SurvivalCurve
from foretell.model import LengthEstimate

QUANTILE_LEVELS = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
PRIOR_TOKENS = 256.0
"""Mean output length assumed of a cluster that nothing is known about."""

_LONGEST_BUCKET = 20  # prompts of 2**19 tokens and more share it
_REFIT_RATIO = 0.05  # share of a window that may be new before its curve is fitted again


def prompt_bucket(prompt_tokens: int) -> int:
    """Log2-spaced: bucket b > 0 holds prompts of 2**(b-1) to 2**b - 1 tokens."""
    return min(_LONGEST_BUCKET, max(0, prompt_tokens).bit_length())


class LengthHistory:
    """Output lengths per model and prompt-length bucket, and the estimates they support.

    The narrowest window with enough observations answers: the bucket, the model, all models, and
    last the prior, an exponential of mean `prior_tokens`. Memory is bounded: each window keeps
    its `window` latest observations, and the model unheard of for longest makes room for a new
    one beyond `max_models`. Deterministic; not thread-safe.
    """

    def __init__(
        self,
        window: int = 4096,
        *,
        min_observations: int = 8,
        max_models: int = 64,
        prior_tokens: float = PRIOR_TOKENS,
    ) -> None:
        if min(window, min_observations, max_models) < 1 or prior_tokens <= 0:
            raise ValueError("window, min_observations, max_models, prior_tokens: must be positive")
        self._window = window
        self._min_observations = min(min_observations, window)
        self._max_models = max_models
        self._prior_tokens = prior_tokens
        self._prior = _Fit(SurvivalCurve((), (), prior_tokens))
        self._all = _Window(window, prior_tokens)
        self._models: dict[str, _ModelHistory] = {}  # least recently observed first

    def observe(
        self, model_name: str, prompt_tokens: int, output_tokens: int, censored: bool = False
    ) -> None:
        """Learn from one answer of `output_tokens` tokens.

        `censored`: `max_tokens` or an abort ended it, so its own length is only known to exceed
        `output_tokens`. An answer without a token says nothing of length and is ignored.
        """
        if output_tokens <= 0:
            return
        model = self._models.pop(model_name, None) or _ModelHistory(
            self._window, self._prior_tokens
        )
        self._models[model_name] = model
        if len(self._models) > self._max_models:
            del self._models[next(iter(self._models))]
        for window in (model.bucket(prompt_bucket(prompt_tokens)), model.whole, self._all):
            window.add(output_tokens, censored)

    def estimate(self, model_name: str, prompt_tokens: int, max_tokens: int = 0) -> LengthEstimate:
        """The length to expect of a request; `max_tokens` 0 means that it has no limit.

        `expected_tokens` is the restricted mean E[min(length, max_tokens)], at least 1, and no
        quantile exceeds `max_tokens`.
        """
        model = self._models.get(model_name)
        if model is not None:
            bucket = model.buckets.get(prompt_bucket(prompt_tokens))
            for window in (bucket, model.whole):
                if window is not None and len(window) >= self._min_observations:
                    return window.fit().estimate(max_tokens, "history")
        if len(self._all) >= self._min_observations:
            return self._all.fit().estimate(max_tokens, "history")
        return self._prior.estimate(max_tokens, "prior")


class _Fit:
    """A curve with the quantiles that every estimate from it repeats."""

    __slots__ = ("_curve", "_quantiles")

    def __init__(self, curve: SurvivalCurve) -> None:
        self._curve = curve
        self._quantiles = tuple((level, curve.quantile(level)) for level in QUANTILE_LEVELS)

    def estimate(self, max_tokens: int, source: str) -> LengthEstimate:
        limit = float(max_tokens) if max_tokens > 0 else math.inf
        return LengthEstimate(
            expected_tokens=max(1.0, self._curve.mean(limit)),
            quantiles=tuple((level, min(tokens, limit)) for level, tokens in self._quantiles),
            source=source,
        )


class _Window:
    """The latest `size` observations and their curve, refitted when enough of them are new."""

    __slots__ = ("_fit", "_new", "_next", "_refit_after", "_signed", "_size", "_tail_mean")

    def __init__(self, size: int, tail_mean_tokens: float) -> None:
        self._size = size
        self._tail_mean = tail_mean_tokens
        self._signed = array("q")  # a censored length is kept negated
        self._next = 0  # oldest observation once the window is full
        self._fit: _Fit | None = None
        self._new = 0
        self._refit_after = 0.0

    def __len__(self) -> int:
        return len(self._signed)

    def add(self, output_tokens: int, censored: bool) -> None:
        signed = -output_tokens if censored else output_tokens
        if len(self._signed) < self._size:
            self._signed.append(signed)
        else:
            self._signed[self._next] = signed
            self._next = (self._next + 1) % self._size
        self._new += 1

    def fit(self) -> _Fit:
        if self._fit is None or self._new > self._refit_after:
            self._fit = _Fit(
                SurvivalCurve(
                    (length for length in self._signed if length > 0),
                    (-length for length in self._signed if length < 0),
                    self._tail_mean,
                )
            )
            self._new = 0
            self._refit_after = _REFIT_RATIO * len(self._signed)
        return self._fit


class _ModelHistory:
    """One model's windows; at most `_LONGEST_BUCKET` + 1 buckets."""

    __slots__ = ("_size", "_tail_mean", "buckets", "whole")

    def __init__(self, size: int, tail_mean_tokens: float) -> None:
        self._size = size
        self._tail_mean = tail_mean_tokens
        self.whole = _Window(size, tail_mean_tokens)
        self.buckets: dict[int, _Window] = {}

    def bucket(self, index: int) -> _Window:
        if index not in self.buckets:
            self.buckets[index] = _Window(self._size, self._tail_mean)
        return self.buckets[index]
