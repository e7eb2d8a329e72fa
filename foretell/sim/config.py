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
    """The engine dies with all its requests; it comes back empty."""
    SLOW = "slow"
    """Its steps take `factor` times as long, and its predictor does not know."""
    MUTE = "mute"
    """Its snapshots are lost."""
    DEAD_PREDICTOR = "dead-predictor"
    """Its predictor dies, and its reservations are lost."""


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
class SimInstanceConfig:
    """One engine."""

    engine: EngineConfig
    step_time: StepTimeModel
    """The true step times."""
    believed_step_time: StepTimeModel | None = None
    """The step times that its predictor believes; None: the true ones."""


@dataclass(frozen=True, slots=True)
class Provisioning:
    """How a simulated cluster grows and shrinks; its `instances` are the places for them."""

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
    """The starts, counted from 0, whose instances never get ready."""


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """A cluster and what it knows of its requests. Delays are one-way."""

    instances: tuple[SimInstanceConfig, ...]
    estimate: Callable[[Arrival], LengthEstimate] = true_length
    """Called once for each arrival, in their order."""
    length_rule: LengthRule = "survival"
    publish_interval_s: float = SNAPSHOT_INTERVAL_S
    """Minimum time between two snapshots of an engine, unless one is urgent."""
    network_delay_s: float = 0.0
    """Seconds from a scheduler to a predictor, and from a predictor to a scheduler."""
    prediction_s: float = 1e-4
    """Seconds that a scheduler takes to predict for one engine (`bench/overhead/predict.md`)."""
    dispatch_delay_s: float = 0.002
    """Seconds from a scheduler's choice to the engine's queue."""
    placement: PlacementConfig = field(default_factory=PlacementConfig)
    """The parameters of every scheduler's placement core."""
    foretell_every: int = 1
    """For every n-th request, predict again for the chosen instance, now including the requests
    that are expected later; `Served` keeps that prediction. The service does so for each request.
    0: `Served` keeps the prediction by which the instances were compared."""
    prefix_cache: bool = False
    """Whether engines cache blocks of the prefixes that arrivals name (`Arrival.prefix`)."""
    predict_hits: bool = True
    """Whether predictors are told the prefixes' hashes, to predict prefix-cache hits."""
    faults: tuple[Fault, ...] = ()
    learn_step_times: bool = False
    """Whether predictors calibrate step times. Unlike the service's, they learn from only one of
    the steps between two snapshots, so it takes them a few times as long."""
    sample_every_s: float = 0.0
    """Seconds between two samples of every engine's free blocks; 0: no samples."""
    provisioning: Provisioning | None = None
    """How instances come and go; None: all are there all the time."""
    reject_late: bool = False
    """Whether requests are rejected to which no instance can give a first token in time."""

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
