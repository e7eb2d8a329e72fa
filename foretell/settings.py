"""The bridge to the environment: every setting of every service, in one place.

Each class reads `FORETELL_<SERVICE>_<NAME>` variables and, in a service's `__main__`, the flags
`--name value`. `docs/settings.md` is generated from the descriptions; a test keeps it current.
"""

import json
from importlib import resources
from typing import Literal

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from foretell.latency.profile_json import profile_from_json
from foretell.model import GpuProfile


def _config(prefix: str) -> SettingsConfigDict:
    return SettingsConfigDict(
        env_prefix=f"FORETELL_{prefix}_",
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_hide_none_type=True,
        cli_avoid_json=True,
        extra="ignore",
    )


class ServiceSettings(BaseSettings):
    """What every service understands."""

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(0, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    ready_file: str = Field(
        "", description="When serving, write the bound address and pid here as JSON."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least severe level that is logged."
    )
    die_with_parent: bool = Field(
        False, description="End when the parent process ends (Linux); set by supervisors."
    )


class SchedulerSettings(ServiceSettings):
    """The OpenAI endpoint."""

    model_config = _config("SCHEDULER")

    instances: str = Field(
        "[]",
        description=(
            "Engines to place on: a JSON list of {instance_id, url, predictor}, or the path of a "
            "file that holds it; the file is read again when it changes."
        ),
    )
    tagger: str = Field("", description="gRPC address of the tagger; empty: history only.")
    policy: str = Field("slo", description="Placement policy; see foretell/policy.")
    candidates: int = Field(
        16,
        ge=0,
        description="Predictors asked for one placement, see foretell/policy/shortlist.py; 0: all.",
    )
    policy_seed: int = Field(0, description="Seed of the policy's random choices; 0: by process.")
    shared_port: int = Field(
        0,
        ge=0,
        le=65535,
        description="A second port shared by all replicas on this host (SO_REUSEPORT); 0: none.",
    )
    api_keys: SecretStr = Field(
        SecretStr(""), description="Comma-separated bearer keys that may call; empty: anyone."
    )
    engine_api_key: SecretStr = Field(
        SecretStr(""), description="Bearer key the engines want; a client's key is never sent on."
    )
    max_body_bytes: int = Field(4 << 20, gt=0, description="Largest request body accepted.")
    max_concurrent_requests: int = Field(
        4096, gt=0, description="Requests in progress beyond which new ones get 429."
    )
    max_attempts: int = Field(
        3, gt=0, description="Instances tried for one request before its first token."
    )
    tagger_deadline_ms: float = Field(30.0, gt=0, description="Longest wait for the tagger.")
    predictor_deadline_ms: float = Field(
        100.0, gt=0, description="Longest wait for the predictors' answers."
    )
    turn_deadline_ms: float = Field(
        500.0,
        gt=0,
        description="Longest wait for the placements before; then one is made without asking.",
    )
    largest_last_ratio: float = Field(
        0.0,
        ge=0,
        lt=1,
        description=(
            "Ratio of requests, the largest by their foretold output, that engines with "
            "--scheduling-policy priority serve last (docs/policies.md); 0: none."
        ),
    )
    hold_max_s: float = Field(
        10.0,
        ge=0,
        description="Longest time that late_binding and foreseen hold a request in the scheduler.",
    )
    hold_recheck_ms: float = Field(
        50.0,
        gt=0,
        description=(
            "Pause until predictors are asked again for a request that is held; less if an answer "
            "of this replica ends before."
        ),
    )
    connect_timeout_s: float = Field(2.0, gt=0, description="Longest wait to connect to an engine.")
    request_timeout_s: float = Field(
        600.0, gt=0, description="Longest silence of an engine in the midst of a request."
    )
    health_interval_s: float = Field(0.5, gt=0, description="Pause between health probes.")
    health_timeout_s: float = Field(3.0, gt=0, description="Longest wait for a health probe.")
    health_failures: int = Field(
        3, gt=0, description="Failed probes in a row after which an instance counts as down."
    )
    drain_timeout_s: float = Field(
        25.0, gt=0, description="Time that requests in progress get to end at shutdown."
    )
    request_log: str = Field(
        "", description="Append one JSON line per request (predicted and actual) to this file."
    )
    request_log_max_bytes: int = Field(
        64 << 20,
        gt=0,
        description="Size at which the request log is rotated; one old file is kept.",
    )
    tokenizer: str = Field(
        "",
        description="tokenizer.json (or its folder) to count prompt tokens; empty: learned ratio.",
    )
    replica_id: str = Field("", description="Name of this replica in metrics; empty: host and pid.")
    ttft_target_ms: float = Field(
        0.0,
        ge=0,
        description="TTFT target of requests without `x-foretell-ttft-target-ms`; 0: none.",
    )
    tpot_target_ms: float = Field(
        0.0,
        ge=0,
        description="TPOT target of requests without `x-foretell-tpot-target-ms`; 0: none.",
    )
    late_requests: Literal["serve", "reject"] = Field(
        "serve",
        description=(
            "What becomes of a request that no instance is predicted to begin to answer within "
            "its TTFT target: it is served all the same, or gets 429. `x-foretell-when-late` wins."
        ),
    )


class PredictorSettings(ServiceSettings):
    """The sidecar beside one engine."""

    model_config = _config("PREDICTOR")

    instance_id: str = Field("engine-0", description="Instance this sidecar watches.")
    listen: str = Field(
        "", description="gRPC address instead of host:port, e.g. unix:///run/predictor.sock."
    )
    snapshot_endpoint: str = Field(
        "ipc:///tmp/foretell-engine-0.ipc", description="ZMQ endpoint where the engine publishes."
    )
    profile: str = Field(
        "",
        description=(
            "GPU profile DEVICE/MODEL to start from; without one of this name, the datasheet of "
            "that device, if it and the model are known; empty: learn from nothing."
        ),
    )
    metrics_port: int = Field(
        -1, ge=-1, le=65535, description="HTTP port of /metrics; 0: a free one, -1: none."
    )
    reserve_ttl_s: float = Field(
        10.0, gt=0, description="Life of a reservation that no snapshot has shown."
    )
    dispatch_delay_s: float = Field(
        0.002, ge=0, description="Assumed time from prediction to arrival in the engine."
    )
    prior_output_tokens: float = Field(
        256.0, gt=0, description="Output length assumed where nobody estimated one."
    )
    lengths: Literal["survival", "block"] = Field(
        "survival",
        description="How output lengths are believed: survival, as distributions given what was "
        "generated; block, as points that are outlived by 10 tokens.",
    )


class TaggerSettings(ServiceSettings):
    """Prompt to output length."""

    model_config = _config("TAGGER")

    listen: str = Field(
        "", description="gRPC address instead of host:port, e.g. unix:///run/tagger.sock."
    )
    model: str = Field(
        "shipped",
        description=(
            "Folder of a length model (`foretell train-tagger`); `shipped`: the one that comes "
            "with the tagger, `none`: history alone."
        ),
    )
    threads: int = Field(1, gt=0, description="Threads that the length model computes with.")
    recalled: int = Field(
        4096, gt=0, description="Latest prompts that the model need not read again."
    )
    checkpoint: str = Field(
        "",
        description=(
            "Folder of a Hugging Face sequence-regression checkpoint, instead of a length model; "
            "empty: none."
        ),
    )
    checkpoint_target: Literal["tokens", "log_tokens"] = Field(
        "tokens", description="What the checkpoint regresses: tokens, or their natural logarithm."
    )
    max_batch: int = Field(32, gt=0, description="Prompts tagged together at most.")
    batch_ms: float = Field(
        10.0, gt=0, description="How long a batch may take: slower, fewer prompts are in one."
    )
    batch_window_ms: float = Field(
        0.0,
        ge=0,
        description="How long the first prompt of a batch waits for others when nothing runs.",
    )
    max_queue: int = Field(
        256, gt=0, description="Prompts waiting beyond which history answers at once."
    )
    max_prompt_chars: int = Field(
        16384, gt=0, description="Longer prompts are tagged by their head and tail."
    )
    history_size: int = Field(
        4096, gt=0, description="Finished requests remembered per model and prompt-length bucket."
    )
    metrics_port: int = Field(
        -1, ge=-1, le=65535, description="HTTP port of /metrics; 0: a free one, -1: none."
    )


class EmulatorSettings(ServiceSettings):
    """The emulated engine: the twin driven by a clock. No GPU, no model."""

    model_config = _config("EMULATOR")

    instance_id: str = Field("engine-0", description="Instance name in snapshots and headers.")
    snapshot_endpoint: str = Field(
        "", description="ZMQ endpoint to publish snapshots on; empty: publish nothing."
    )
    profile: str = Field("A30/Llama-2-7b-hf", description="GPU profile whose speed is emulated.")
    model_name: str = Field("", description="Name served; empty: the profile's model.")
    speedup: float = Field(1.0, gt=0, description="Run this many times faster than the profile.")
    noise_ratio: float = Field(
        0.05, ge=0, lt=1, description="Standard deviation of step time around the profile's."
    )
    seed: int = Field(0, description="Seed of step-time noise.")
    max_num_seqs: int = Field(0, ge=0, description="As in vLLM; 0: the profile's.")
    max_num_batched_tokens: int = Field(0, ge=0, description="As in vLLM; 0: the profile's.")
    max_model_len: int = Field(0, ge=0, description="As in vLLM; 0: the profile's.")
    total_blocks: int = Field(0, ge=0, description="KV blocks; 0: the profile's.")
    mean_output_tokens: float = Field(
        180.0, gt=0, description="Mean of the output lengths drawn where no EOS would be seen."
    )
    max_queue: int = Field(4096, gt=0, description="Requests held beyond which 503 is returned.")
    max_body_bytes: int = Field(4 << 20, gt=0, description="Largest request body accepted.")


class PluginSettings(BaseSettings):
    """Read inside vLLM's engine process by the plugin (variables only; it has no flags)."""

    model_config = _config("PLUGIN")

    snapshot_endpoint: str = Field(
        "", description="ZMQ endpoint to publish snapshots on; empty: the plugin stays off."
    )
    instance_id: str = Field("engine-0", description="Instance name in snapshots.")
    heartbeat_s: float = Field(
        0.5, gt=0, description="An unchanged snapshot is repeated after this long."
    )


class LauncherSettings(BaseSettings):
    """Starts one engine, emulated or vLLM, with its predictor sidecar."""

    model_config = _config("LAUNCHER")

    engine: Literal["emulated", "vllm"] = Field("emulated", description="Engine to start.")
    instance_id: str = Field("engine-0", description="Instance name.")
    host: str = Field("127.0.0.1", description="Address the engine listens on.")
    port: int = Field(0, ge=0, le=65535, description="Port the engine listens on; 0: a free one.")
    run_dir: str = Field(
        "", description="Folder for sockets, ready files and logs; empty: a new one."
    )
    predictor_listen: str = Field(
        "", description="gRPC address of the sidecar; empty: a unix socket in run_dir."
    )
    profile: str = Field("", description="GPU profile for the engine (emulated) and the sidecar.")
    model: str = Field("", description="vLLM: model folder or name.")
    served_model_name: str = Field("", description="Name served; empty: the engine's default.")
    python: str = Field("", description="vLLM: Python that has vllm installed; empty: this one.")
    engine_args: str = Field("", description="Further engine flags, split as a shell would.")
    max_restarts: int = Field(
        5, ge=0, description="Restarts of the sidecar in any minute at most; 0: none at all."
    )
    ready_file: str = Field("", description="When both serve, write their addresses and pids here.")
    ready_timeout_s: float = Field(300.0, gt=0, description="Longest wait for the engine to serve.")
    die_with_parent: bool = Field(
        False, description="End when the parent process ends (Linux); set by supervisors."
    )


ALL_SETTINGS: tuple[type[BaseSettings], ...] = (
    SchedulerSettings,
    PredictorSettings,
    TaggerSettings,
    EmulatorSettings,
    PluginSettings,
    LauncherSettings,
)


def list_profiles() -> tuple[str, ...]:
    """The names (`DEVICE/MODEL`) of the GPU profiles that ship with the package, sorted."""
    folder = resources.files("foretell.latency") / "profiles"
    names = (entry.name for entry in folder.iterdir() if entry.name.endswith(".json"))
    return tuple(sorted(name.removesuffix(".json").replace("__", "/") for name in names))


def load_profile(name: str) -> GpuProfile:
    """The shipped GPU profile `name`; ValueError that lists the known names otherwise."""
    if name not in list_profiles():
        raise ValueError(f"unknown GPU profile {name!r}; known: {', '.join(list_profiles())}")
    path = resources.files("foretell.latency") / "profiles" / f"{name.replace('/', '__')}.json"
    return profile_from_json(json.loads(path.read_text(encoding="utf-8")))
