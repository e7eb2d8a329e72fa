"""Forecasts the rate of arrivals, with a margin, from counts of arrived requests."""

from collections import deque
from math import sqrt
from statistics import NormalDist, fmean, median

from foretell.provision.config import DAY_S, TUNING


class _Record:
    """Forecasts for one horizon, and their errors."""

    def __init__(self) -> None:
        self.pending: deque[tuple[float, float, float]] = deque()  # (from, until, predicted)
        self.errors: deque[float] = deque(maxlen=TUNING.most_errors)  # arrived over predicted

    def quantile(self, confidence: float) -> float:
        """The quantile of arrivals over predicted ones; 0 while too few are known."""
        if len(self.errors) < TUNING.fewest_errors:
            return 0.0
        ordered = sorted(self.errors)
        return ordered[min(len(ordered) - 1, int(confidence * len(ordered)))]


class ArrivalForecast:
    """The rate of arrivals some time ahead: level, trend or time of day, and a margin.

    If earlier days are known, the current rate is multiplied by the ratio of their rates at the
    future and at the present time of day; otherwise half of the trend is assumed to continue. The
    margin is the larger of two: a normal quantile with the dispersion of counts (variance over
    mean; 1 for Poisson arrivals), and the quantile of arrivals over predicted ones, if enough are
    known. Errors are kept apart for forecasts of now and of some time ahead, which is taken as one
    horizon although it moves slowly. The margin allows for surges, so it is not added to one: in a
    surge it is relative to the usual rate, and the errors of forecasts do not count.
    """

    def __init__(self, *, day_s: float = DAY_S) -> None:
        self._day_s = day_s
        self._counts: deque[tuple[float, float, int]] = deque()  # (until, seconds, arrived)
        self._last_s: float | None = None
        self._days: dict[int, float] = {}  # rates by the part of the day
        self._bin: tuple[int, float, int] | None = None  # the part, its seconds and arrivals so far
        self._records = {ahead: _Record() for ahead in (False, True)}

    def observe(self, now_s: float, arrived: int) -> None:
        """Count the requests that have `arrived` since the previous call."""
        if self._last_s is not None and now_s > self._last_s:
            seconds = now_s - self._last_s
            self._counts.append((now_s, seconds, arrived))
            self._remember(now_s, seconds, arrived)
        self._last_s = now_s
        for record in self._records.values():
            while record.pending and record.pending[0][1] <= now_s:
                since_s, until_s, predicted = record.pending.popleft()
                record.errors.append(self._rate(since_s, until_s) / predicted)
        while self._counts and self._counts[0][0] < now_s - TUNING.trend_s:
            self._counts.popleft()

    @property
    def known(self) -> bool:
        """Whether anything has been counted."""
        return bool(self._counts)

    def rate(self, now_s: float) -> float:
        """The current rate in requests per second."""
        level, latest = (
            self._rate(now_s - span_s, now_s) for span_s in (TUNING.level_s, TUNING.jump_s)
        )
        usual = TUNING.jump_sigmas * sqrt(
            self.dispersion() * max(level, 1.0 / TUNING.level_s) / TUNING.jump_s
        )
        return latest if abs(latest - level) > usual else level

    def mean(self, now_s: float, ahead_s: float) -> float:
        """The expected rate in requests per second, `ahead_s` from now."""
        level = self.rate(now_s)
        before, after = self._of_day(now_s - TUNING.level_s / 2), self._of_day(now_s + ahead_s)
        if before and after:
            return level * min(4.0, max(0.25, after / before))
        grown = level + 0.5 * self._slope(now_s) * ahead_s
        return min(2.0 * level, max(0.5 * level, grown))

    def upper(self, now_s: float, ahead_s: float, window_s: float, confidence: float) -> float:
        """A rate that the mean over a window, `ahead_s` from now, will not exceed at this
        confidence; the window is no longer than `trend_s`.

        Forecasts outside a surge are later compared with the arrivals.
        """
        mean = self.mean(now_s, ahead_s)
        if mean <= 0:
            return 0.0
        record = self._records[ahead_s > 0]
        usual = TUNING.surge_ratio * median(
            arrived / seconds for _, seconds, arrived in self._counts
        )
        if mean <= usual or usual == 0:
            record.pending.append((now_s + ahead_s, now_s + ahead_s + window_s, mean))
            usual = mean
        spread = sqrt(self.dispersion() / (usual * window_s))
        margin = 1.0 + NormalDist().inv_cdf(confidence) * spread
        return max(mean, usual * max(margin, record.quantile(confidence)))

    def dispersion(self) -> float:
        """Variance over mean of the counts, at least 1; slow changes do not count."""
        spans = [(s, arrived / s) for _, s, arrived in self._counts]
        total_s = sum(s for s, _ in spans)
        mean = sum(s * rate for s, rate in spans) / total_s if total_s > 0 else 0.0
        if len(spans) < 8 or mean <= 0:
            return 1.0
        # In a Poisson process, E[(rate difference of two spans)^2] is mean * (1/s + 1/t).
        pairs = zip(spans[1:], spans[:-1], strict=True)
        return max(1.0, fmean((b - a) ** 2 / (1 / s + 1 / t) for (s, b), (t, a) in pairs) / mean)

    def _rate(self, since_s: float, until_s: float) -> float:
        """The mean rate over the counts that ended in this time."""
        chosen = [(s, n) for at_s, s, n in self._counts if since_s < at_s <= until_s]
        seconds = sum(s for s, _ in chosen)
        return sum(n for _, n in chosen) / seconds if seconds > 0 else 0.0

    def _slope(self, now_s: float) -> float:
        """The change of the rate per second, by least squares."""
        chosen = [
            (at_s - s / 2, n / s) for at_s, s, n in self._counts if at_s > now_s - TUNING.trend_s
        ]
        if len(chosen) < 8:
            return 0.0
        middle, mean = fmean(t for t, _ in chosen), fmean(r for _, r in chosen)
        square = sum((t - middle) ** 2 for t, _ in chosen)
        return sum((t - middle) * (r - mean) for t, r in chosen) / square if square else 0.0

    def _part(self, at_s: float) -> int:
        return int(at_s % self._day_s / self._day_s * TUNING.bins)

    def _remember(self, now_s: float, seconds: float, arrived: int) -> None:
        """Add counts to the rates by the time of day; the latest day counts half."""
        part = self._part(now_s - seconds / 2)
        if self._bin is not None and self._bin[0] != part:
            of, spent_s, total = self._bin
            rate = total / spent_s
            self._days[of] = (self._days[of] + rate) / 2 if of in self._days else rate
            self._bin = None
        _, spent_s, total = self._bin or (part, 0.0, 0)
        self._bin = part, spent_s + seconds, total + arrived

    def _of_day(self, at_s: float) -> float:
        """The rate at this time on earlier days, interpolated between parts; 0: not known."""
        place = at_s % self._day_s / self._day_s * TUNING.bins - 0.5
        first = int(place // 1) % TUNING.bins
        before, after = self._days.get(first), self._days.get((first + 1) % TUNING.bins)
        if before is None or after is None:
            return 0.0
        share = place - place // 1
        return before * (1 - share) + after * share
