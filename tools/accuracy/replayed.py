"""`foretell accuracy`: a recorded run through the twin, and how far off it was."""

from dataclasses import asdict, dataclass, field
from typing import Any

from foretell.latency.linear import StepTimeModel
from foretell.latency.roofline import estimated_kv_blocks, roofline_step_time, sharded
from foretell.latency.tables import profile_step_time
from foretell.model import EngineConfig, GpuProfile, ModelSpec
from foretell.sim.accuracy import accuracy
from foretell.sim.calibrate import HostTime, calibrate, host_time
from foretell.sim.recorded import Latency, ReplayConfig, replay
from foretell.tools.accuracy.recorded_run import RecordedRun
from foretell.tools.profiles.imports import with_graphs
from foretell.tools.profiles.sizes import Datasheet, device_of, known_model, model_of

UNKNOWN_DEVICE = "A100-80GB"  # from the middle of those that serve
CALIBRATION_SHARE = 3  # one request in so many teaches and is not evaluated
_DIGITS = 5


@dataclass(frozen=True, slots=True)
class AccuracyOptions:
    """Options of a replay; zero and empty mean what the run or the profile says."""

    profile: GpuProfile | None = None
    device: str = ""
    """Without a profile: the device whose datasheet is the prior. Empty: `UNKNOWN_DEVICE`."""
    sheet: Datasheet = field(default_factory=Datasheet)
    """Without a profile: what is said of the device."""
    model: str = ""
    """Without a profile: the run's model or its config.json. Empty: the one that the run names."""
    frontend_s: float = 0.0
    async_scheduling: bool = True
    kv_blocks: int = 0
    host: bool = True
    """With a profile: what the host adds to its GPU time is learnt from the first requests."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A replay beside the truth; only the requests that were evaluated."""

    run: RecordedRun
    predicted: list[Latency]
    actual: list[Latency]
    about: dict[str, Any] = field(default_factory=dict)

    def report(self) -> dict[str, Any]:
        """What `foretell accuracy` prints."""
        found = accuracy(self.predicted, self.actual)
        return {
            "model": self.run.model,
            "engine_version": self.run.engine_version,
            "requests": len(self.actual),
            **self.about,
            **{
                name: {key: round(value, _DIGITS) for key, value in asdict(errors).items()}
                for name, errors in found.items()
            },
        }


def evaluate(run: RecordedRun, options: AccuracyOptions) -> Evaluation:
    """Replay a run; ValueError with the reason where it cannot be."""
    if options.profile is not None:
        return _with_profile(run, options, options.profile)
    return _without_profile(run, options)


def _with_profile(run: RecordedRun, options: AccuracyOptions, profile: GpuProfile) -> Evaluation:
    config = _replay_config(run, options, profile.total_blocks)
    tensor_parallel = int(run.engine_kwargs.get("tensor_parallel_size") or 1)
    if (profile.tensor_parallel, profile.data_parallel) != (tensor_parallel, config.ranks):
        raise ValueError(
            f"the run was made with --tensor-parallel {tensor_parallel} --data-parallel "
            f"{config.ranks}; {profile.name} was imported with {profile.tensor_parallel} and "
            f"{profile.data_parallel}"
        )
    model = profile_step_time(with_graphs(profile, config.engine.max_num_seqs))
    first = len(run.requests) // CALIBRATION_SHARE
    learns = options.host and first > 0
    host = host_time(run.requests, config, model, first) if learns else HostTime()
    about = {
        "profile": profile.name,
        "step_time": "tables" if profile.tables is not None else "linear",
        "calibration_requests": first,
        "host_ms_per_step": round(host.step_s * 1e3, 3),
        "host_us_per_sequence": round(host.sequence_s * 1e6, 3),
    }
    return _evaluation(run, config, host.added_to(model), first, about)


def _without_profile(run: RecordedRun, options: AccuracyOptions) -> Evaluation:
    device, model = sharded(
        device_of(options.device or UNKNOWN_DEVICE, options.sheet),
        _model_spec(options.model or run.model),
        int(run.engine_kwargs.get("tensor_parallel_size") or 1),
        int(run.engine_kwargs.get("data_parallel_size") or 1),
    )
    config = _replay_config(run, options, estimated_kv_blocks(device, model))
    first = len(run.requests) // CALIBRATION_SHARE
    found = calibrate(run.requests, config, roofline_step_time(device, model), first)
    about = {
        "profile": None,
        "step_time": f"roofline of {device.name}, five factors fitted to the first requests",
        "calibration_requests": first,
        "calibration_factors": [round(factor, 3) for factor in found.factors],
    }
    return _evaluation(run, config, found.model, first, about)


def _evaluation(
    run: RecordedRun,
    config: ReplayConfig,
    model: StepTimeModel,
    skip: int,
    about: dict[str, Any],
) -> Evaluation:
    predicted = replay(run.requests, config, model)
    about |= {
        "kv_blocks": config.engine.total_blocks,
        "async_scheduling": config.engine.async_scheduling,
        "prefix_caching": config.engine.enable_prefix_caching,
        "prompts_known": run.tells_prompts,
        "frontend_ms": config.frontend_s * 1e3,
        "ranks": config.ranks,
    }
    actual = [request.actual for request in run.requests if request.actual is not None]
    return Evaluation(run, predicted[skip:], actual[skip:], about)


def _replay_config(run: RecordedRun, options: AccuracyOptions, kv_blocks: int) -> ReplayConfig:
    """The engine of the run; KV blocks as asked for, recorded, or estimated, in this order."""
    kwargs = run.engine_kwargs
    longest = max(request.prompt_tokens + request.output_tokens for request in run.requests)
    blocks = options.kv_blocks or run.kv_blocks or kv_blocks
    if not blocks:
        raise ValueError("neither the run nor the profile says how many KV blocks fit: --kv-blocks")
    try:
        engine = EngineConfig(
            model_name=run.model,
            block_size_tokens=16,
            total_blocks=blocks,
            max_num_seqs=int(kwargs["max_num_seqs"]),
            max_num_scheduled_tokens=int(kwargs["max_num_batched_tokens"]),
            max_model_len=int(kwargs.get("max_model_len") or longest),
            engine_version=run.engine_version,
            enable_prefix_caching=kwargs.get("enable_prefix_caching") is not False,
            async_scheduling=options.async_scheduling,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"meta.json lacks the engine's limits: {error!r}") from error
    return ReplayConfig(
        engine=engine,
        ranks=int(kwargs.get("data_parallel_size") or 1),
        frontend_s=options.frontend_s,
    )


def _model_spec(name_or_file: str) -> ModelSpec:
    """A model by its file, or the known one whose name begins the last part of the name."""
    return model_of(known_model([name_or_file.rpartition("/")[2]]) or name_or_file)
