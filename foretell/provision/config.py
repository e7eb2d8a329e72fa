"""The bounds for any strategy, and tuning values, which no user has to set."""

from dataclasses import dataclass

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class ProvisionConfig:
    """Raises ValueError for values out of range."""

    minimum: int = 1
    """0: the cluster may have no instance; the first request that is held starts one."""
    maximum: int = 8
    cool_down_s: float = 300.0
    """For this long, the largest proposal limits how far the number of instances is reduced."""
    cold_start_s: float = 120.0
    """Assumed until one has been measured."""
    give_up_s: float = 900.0
    """An instance that is not ready this long after its start is stopped."""
    stale_s: float = 30.0
    """Numbers older than this are not used for decisions."""
    respect_s: float = 1800.0
    """How long the number that a person has set is left alone."""

    def __post_init__(self) -> None:
        if not 0 <= self.minimum <= self.maximum or self.maximum < 1:
            found = f"{self.minimum} and {self.maximum}"
            raise ValueError(f"need 0 <= minimum <= maximum >= 1, got {found}")
        for name in ("cool_down_s", "cold_start_s", "give_up_s", "stale_s", "respect_s"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class ProvisionTuning:
    """The values with which `bench/provisioning/day.md` was measured, on traces of a week."""

    survivors_ratio: float = 0.8
    """The largest share of seats and of KV cache that remaining instances may use at once."""
    cold_starts: int = 32
    """The number of latest cold starts whose P90 counts."""
    # The forecast of arrivals.
    level_s: float = 120.0
    jump_s: float = 30.0
    """The current rate is the mean over `level_s`, or the mean over `jump_s` if that differs by
    more than `jump_sigmas` of its standard deviations."""
    jump_sigmas: float = 2.5
    trend_s: float = 600.0
    """The trend is taken over this time; half of it is assumed to continue."""
    surge_ratio: float = 1.25
    """A rate above this many times the median over `trend_s` is a surge."""
    bins: int = 144
    """Parts of a day whose rates are remembered."""
    fewest_errors: int = 20
    most_errors: int = 480
    """The fewest forecast errors that give a quantile, and the most that are remembered."""
    # Foresight's rollouts.
    window_s: float = 60.0
    """The time after a cold start for which the target must be kept."""
    catch_up_s: float = 30.0
    """The part of `window_s` in which new instances may miss targets while they work off the queue:
    having more of them to catch up faster would cost money long after."""
    grace_s: float = 15.0
    """How long a rollout goes on after the last arrival."""
    lengths: int = 512
    """The number of latest requests from whose lengths future ones are sampled."""
    keeps_for_s: float = 300.0
    fails_for_s: float = 1800.0
    """How long a result counts that a number of instances keeps the targets, or fails to. Failures
    count longer: removing an instance that is needed again costs more than one too many."""
    spare: float = 1.1
    """Fewer instances must keep the targets at this many times the rate: otherwise those removed
    would soon be needed again."""


TUNING = ProvisionTuning()
