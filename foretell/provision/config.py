"""The bounds within which any strategy moves."""

from dataclasses import dataclass, field

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class ScheduledBounds:
    """Other bounds every day between two times; `from_s` after `until_s` spans midnight."""

    from_s: float
    """Seconds since midnight."""
    until_s: float
    minimum: int
    maximum: int

    def holds(self, now_s: float) -> bool:
        """Whether they hold at `now_s`, seconds since some midnight."""
        time_s = now_s % DAY_S
        if self.from_s <= self.until_s:
            return self.from_s <= time_s < self.until_s
        return time_s >= self.from_s or time_s < self.until_s


@dataclass(frozen=True, slots=True)
class ProvisionConfig:
    """Raises ValueError for values out of range."""

    minimum: int = 1
    """0: the cluster may have no instance; the first request that is held starts one."""
    maximum: int = 8
    schedule: tuple[ScheduledBounds, ...] = field(default=())
    """The first that holds replaces `minimum` and `maximum`."""
    cool_down_s: float = 300.0
    """There are as many instances as any proposal of so many seconds asked for."""
    cold_start_s: float = 120.0
    """Assumed until one has been measured."""
    give_up_s: float = 900.0
    """An instance that is not ready so long after its start is stopped."""
    stale_s: float = 30.0
    """Numbers older than this decide nothing."""
    respect_s: float = 1800.0
    """How long the number that a person has set is left alone."""

    def __post_init__(self) -> None:
        bounds = [(self.minimum, self.maximum)]
        bounds += [(each.minimum, each.maximum) for each in self.schedule]
        for minimum, maximum in bounds:
            if not 0 <= minimum <= maximum or maximum < 1:
                raise ValueError(f"need 0 <= minimum <= maximum >= 1, got {minimum} and {maximum}")
        for name in ("cool_down_s", "cold_start_s", "give_up_s", "stale_s", "respect_s"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")

    def bounds(self, now_s: float) -> tuple[int, int]:
        """The least and the most instances at `now_s`."""
        for each in self.schedule:
            if each.holds(now_s):
                return each.minimum, each.maximum
        return self.minimum, self.maximum
