"""The configuration of a simulated cluster."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from math import inf

from foretell.latency.linear import StepTimeModel
from foretell.length.distribution import LengthRule
from foretell.model import EngineConfig, LengthEstimate
from foretell.model.clock import SNAPSHOT_INTERVAL_S
from foretell.placement import PlacementConfig
from foretell.provision import ProvisionConfig, Strategy
from foretell.workload import Arrival


def true_length(arrival: Arrival) -> LengthEstimate:
    """An oracle: the length the request will really have."""
    return LengthEstimate(float(arrival.output_tokens), source="hint")


class FaultKind(Enum):
    """The kinds of faults that can be injected into an instance."""

    CRASH = "crash"
    """The engine dies with all it holds; it comes back empty."""
    SLOW = "slow"
    """Its steps take `factor` times as long, and its predictor does not know."""
    MUTE = "mute"
    """Its snapshots are lost."""
    DEAD_PREDICTOR = "dead-predictor"
    """Nobody answers for it, and what is reserved is forgotten."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that begins at `at_s` and lasts for `for_s` seconds, on the arrivals' clock."""

    kind: FaultKind
    instance: int
    at_s: float
    for_s: float = inf
    factor: float = 2.0
    """The factor on the step times of a slow instance."""


@dataclass(frozen=True, slots=True)
class InstanceConfig:
    """One engine."""

    engine: EngineConfig
    step_time: StepTimeModel
    """The true step times."""
    believed_step_time: StepTimeModel | None = None
    """The step times that its predictor believes; None: the true ones."""


@dataclass(frozen=True, slots=True)
class Provisioning:
    """How a simulated cluster grows and shrinks; its `instances` are the places there are."""

    strategy: Callable[[], Strategy]
    """Makes the strategy of one run."""
    config: ProvisionConfig
    initial: int
    """Instances that are ready when the first request arrives."""
    cold_start_s: float
    """Seconds from the start of an instance until it is ready."""
    every_s: float = 15.0
    """Pause between two decisions."""
    never_ready: frozenset[int] = frozenset()
    """Which starts, counted from 0, never get ready."""


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """A cluster and what it knows of its requests. Delays are one way."""

    instances: tuple[InstanceConfig, ...]
    estimate: Callable[[Arrival], LengthEstimate] = true_length
    """Called once for each arrival, in their order."""
    length_rule: LengthRule = "survival"
    publish_interval_s: float = SNAPSHOT_INTERVAL_S
    """Least time between two snapshots of an engine, but for one that is urgent."""
    network_delay_s: float = 0.0
    """Seconds from a scheduler to a predictor, and again back."""
    prediction_s: float = 1e-4
    """Seconds that a scheduler takes to predict for one engine (`bench/overhead/predict.md`)."""
    dispatch_delay_s: float = 0.002
    """Seconds from a scheduler's choice to the engine's queue."""
    placement: PlacementConfig = field(default_factory=PlacementConfig)
    """The parameters of every scheduler's placement core."""
    foretell_every: int = 1
    """Every n-th request it is predicted again for the chosen instance, now with the requests that
    will come later; `Served` keeps that prediction. The service does so for each request. 0:
    `Served` keeps the prediction by which the instances were compared."""
    prefix_cache: bool = False
    """Engines find blocks of the prefixes that arrivals name (`Arrival.prefix`)."""
    predict_hits: bool = True
    """Predictors are told the prefixes' names, to foretell what engines will find cached."""
    faults: tuple[Fault, ...] = ()
    learn_step_times: bool = False
    """Predictors learn how long steps take, as those of the service do; but of the steps between
    two snapshots they learn from one alone, so it takes them a few times as long."""
    sample_every_s: float = 0.0
    """Seconds between two samples of every engine's free blocks; 0: no samples."""
    provisioning: Provisioning | None = None
    """How instances come and go; None: all are there all the time."""
    reject_late: bool = False
    """Requests that no instance can give a first token in time are not admitted."""

    def __post_init__(self) -> None:
        if not self.instances:
            raise ValueError("a cluster needs at least one engine")
        if self.foretell_every < 0:
            raise ValueError("foretell_every must be at least 0")
        if self.publish_interval_s <= 0:
            raise ValueError("publish_interval_s must be positive")
        if self.provisioning and self.provisioning.initial > len(self.instances):
            raise ValueError("there are fewer instances than shall be there at first")
        for fault in self.faults:
            if not 0 <= fault.instance < len(self.instances):
                raise ValueError(f"there is no instance {fault.instance} to become {fault.kind}")
            if fault.for_s <= 0 or fault.factor <= 0:
                raise ValueError(f"{fault} needs a positive time and factor")
