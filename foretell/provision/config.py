"""The bounds within which any strategy moves, and what nobody has to set."""

from dataclasses import dataclass

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class ProvisionConfig:
    """Raises ValueError for values out of range."""

    minimum: int = 1
    """0: the cluster may have no instance; the first request that is held starts one."""
    maximum: int = 8
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
        if not 0 <= self.minimum <= self.maximum or self.maximum < 1:
            found = f"{self.minimum} and {self.maximum}"
            raise ValueError(f"need 0 <= minimum <= maximum >= 1, got {found}")
        for name in ("cool_down_s", "cold_start_s", "give_up_s", "stale_s", "respect_s"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class Tuning:
    """Values that `bench/provisioning/day.md` was made with, on traces of a week."""

    survivors_ratio: float = 0.8
    """Seats and KV cache that the survivors of a step down may use at most, at once."""
    cold_starts: int = 32
    """The latest cold starts, whose P90 counts."""
    # The forecast of arrivals.
    level_s: float = 120.0
    jump_s: float = 30.0
    """The rate now is the mean over `level_s`, or over `jump_s` where that is another one, by so
    many standard deviations of such a mean:"""
    jump_sigmas: float = 2.5
    trend_s: float = 600.0
    """The trend is that of so many seconds; half of it is taken to go on."""
    surge_ratio: float = 1.25
    """What is above so many times the median of that time is a surge."""
    bins: int = 144
    """Parts of a day whose rates are remembered."""
    fewest_errors: int = 20
    most_errors: int = 480
    """Errors of forecasts that are remembered."""
    # Foresight's rollouts.
    window_s: float = 60.0
    """The time after a cold start for which the target must be kept."""
    catch_up_s: float = 30.0
    """The time in it that new instances have to catch up with what waits by then: they are paid for
    long after."""
    grace_s: float = 15.0
    """How long a rollout goes on after the last arrival."""
    lengths: int = 512
    """Lengths of the latest requests, from which those to come are taken."""
    keeps_for_s: float = 300.0
    fails_for_s: float = 1800.0
    """How long it counts that so many instances kept the targets, or failed to: to take away one
    that is wanted back costs more than to keep one too many."""
    spare: float = 1.1
    """One instance less must serve so many times the rate: otherwise it would be wanted back soon.
    """


TUNING = Tuning()
