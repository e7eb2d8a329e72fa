"""The settings of every process.

Each class reads `FORETELL_<SERVICE>_<NAME>` variables and, in a service's `__main__`, the flags
`--name value`. `docs/reference.md` is generated from the descriptions; a test keeps it current.
"""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from foretell.config.keys import is_key_file, read_api_keys
from foretell.config.layout import EMULATED_PROFILE, values_from
from foretell.config.policies import build_policy, build_strategy
from foretell.config.profiles import check_shipped_profile
from foretell.config.sections import (
    BatchOptions,
    LogFormat,
    LogLevel,
    PolicyName,
    PolicyParameters,
    Port,
    Profile,
    ProvisionOptions,
    SchedulerOptions,
    TaggerOptions,
    TargetsSection,
    TrafficOptions,
    check_https,
)


class _ClusterSource(PydanticBaseSettingsSource):
    """What the cluster file says about a process; its flags and its environment come first."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """Unused: all values are derived together."""
        raise NotImplementedError

    def __call__(self) -> dict[str, Any]:
        path, name = (str(self.current_state.get(key, "")) for key in ("cluster", "name"))
        service = self.settings_cls.model_config["env_prefix"].split("_")[1].lower()
        return values_from(path, service, name) if path else {}  # type: ignore[arg-type]


class ProcessSettings(BaseSettings):
    """Settings of a process that finds its own part in a cluster file."""

    model_config = SettingsConfigDict(defer_build=True)

    cluster: str = ""
    """Cluster file with the settings of this process."""

    @classmethod
    def settings_customise_sources(  # type: ignore[override]  # they are given by name
        cls, settings_cls: type[BaseSettings], **sources: PydanticBaseSettingsSource
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags and arguments first, then the environment, then the cluster file."""
        return sources["init_settings"], sources["env_settings"], _ClusterSource(settings_cls)


def _config(prefix: str) -> SettingsConfigDict:
    return SettingsConfigDict(
        env_prefix=f"FORETELL_{prefix}_",
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_hide_none_type=True,
        cli_avoid_json=True,
        extra="ignore",
        defer_build=True,
    )


class ServiceSettings(ProcessSettings):
    """What every service understands."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Port = 0
    """Port to listen on; 0 takes a free one."""
    ready_file: str = ""
    """File for the address and pid, as JSON, once the process serves."""
    log_level: LogLevel = "info"
    """Least severe level that is logged."""
    log_format: LogFormat = "text"
    """`json`: one JSON object a line."""

    @model_validator(mode="after")
    def _secrets_are_read(self) -> Self:
        for name, field in type(self).model_fields.items():
            if field.annotation is SecretStr:
                path = getattr(self, f"{name}_file")
                if name != "api_keys" or not _has_named_keys(path):
                    found = _or_from_file(getattr(self, name), f"{name}_file", path)
                    setattr(self, name, found)
        return self


class TrafficSettings(ServiceSettings, TrafficOptions):
    """Settings of a process that calls predictors and tagger, or that is one of them."""

    model_config = SettingsConfigDict(extra="ignore")

    secret: SecretStr = SecretStr("")
    """The shared secret itself, instead of `secret_file`."""


class ListeningSettings(TrafficSettings):
    """Settings of a process that other services call."""

    listen: str = ""
    """Address instead of host and port, such as unix:///run/predictor.sock."""
    metrics_port: int = Field(-1, ge=-1, le=65535)
    """HTTP port of /metrics; 0 takes a free one, -1: none."""

    @property
    def address(self) -> str:
        """Where it listens: unix:PATH or HOST:PORT."""
        return self.listen or f"{self.host}:{self.port}"


def _or_from_file(given: SecretStr, setting: str, path: str) -> SecretStr:
    """The `given` value, else the lines of a file, comma-separated."""
    if given.get_secret_value() or not path:
        return given
    try:
        lines = Path(path).read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{setting}: cannot read {path}: {error}") from error
    if not lines:
        raise ValueError(f"{setting}: {path} is empty")
    return SecretStr(",".join(lines))


def _has_named_keys(path: str) -> bool:
    """Whether a file names its keys; ValueError if it does, and they are wrong."""
    try:
        text = Path(path).read_text(encoding="utf-8") if path else ""
    except (OSError, UnicodeDecodeError):
        return False  # `_or_from_file` reports it
    if not is_key_file(text):
        return False
    read_api_keys(text)
    return True


class SchedulerSettings(TrafficSettings, TargetsSection, SchedulerOptions):
    """The OpenAI endpoint."""

    model_config = _config("SCHEDULER")

    name: str = ""
    """Name of this replica in logs and metrics; empty: host name and pid."""
    instances: str = "[]"
    """Engines: a JSON list of {instance_id, url, predictor}, a file of it, or a cluster file; files
    are read again when they change. In Kubernetes also `pods:SELECTOR` or
    `endpointslices:SELECTOR`, which are watched."""
    tagger: str = ""
    """gRPC address of the tagger, if any."""
    batches: str = ""
    """Address of the batch service, `unix:PATH` or HOST:PORT, if any."""
    policy: PolicyName = "slo"
    policy_parameters: PolicyParameters = Field(default_factory=dict)
    shared_port: Port = 0
    """A second port, shared by the replicas of a host (SO_REUSEPORT); 0: none."""
    https_listen: str = Field("", pattern=r"^(.+:\d+)?$")
    """HOST:PORT with TLS, beside the ports without; replicas share it."""
    picker: str = ""
    """gRPC address of an endpoint picker for Envoy and other gateways, such as
    unix:/run/picker.sock."""
    picker_proof: Literal["secret", "network"] = "secret"
    """What gateways on other hosts prove themselves with: the shared secret or a certificate; or
    nothing, where the network lets only gateways through: the picker tells them the engines'
    key."""
    api_keys: SecretStr = SecretStr("")
    """Comma-separated bearer keys of callers; empty: anyone may call."""
    engine_api_key: SecretStr = SecretStr("")
    """Bearer key of the engines."""
    request_log: str = ""
    """File to which a JSON line per request is appended."""

    @model_validator(mode="after")
    def _policy_can_be_built(self) -> Self:
        build_policy(self.policy, self.policy_parameters)
        return self

    @model_validator(mode="after")
    def _https_has_its_files(self) -> Self:
        check_https(self.https_listen, self.https_certificate, self.https_key)
        return self


class PredictorSettings(ListeningSettings):
    """The sidecar beside one engine."""

    model_config = _config("PREDICTOR")

    name: str = "engine-0"
    """Name of the engine that this sidecar watches."""
    snapshot_endpoint: str = "shm:///tmp/foretell-engine-0.snapshots"
    """Where the engine publishes its snapshots: shm://PATH."""
    engine_url: str = Field("", pattern="^(https?://.+)?$", examples=["http://10.0.0.5:8000"])
    """URL of an engine that publishes none: what it does is observed from outside."""
    engine_args: str = ""
    """Flags that such an engine was started with; those that state limits count."""
    profile: Profile = ""
    """GPU profile DEVICE/MODEL to start from, shipped or by the device's datasheet; empty: none."""


class TaggerSettings(ListeningSettings, TaggerOptions):
    """The service that estimates output lengths from prompts."""

    model_config = _config("TAGGER")


class ProvisionerSettings(TrafficSettings, ProvisionOptions):
    """Decides how many engines there should be. One of its replicas is active."""

    model_config = _config("PROVISIONER")

    folder: str = ""
    """Folder of decisions (required). Without `lease` replicas share it on one host, and a locked
    file in it says which is active."""
    lease: str = ""
    """By what replicas on several hosts agree which is active: the name of a Kubernetes Lease, or
    the postgresql:// URL of a database, such as that of batches."""
    driver: Literal["advisory", "process", "docker", "kubernetes"] = "advisory"
    """Who carries decisions out: nobody, `foretell up`, or the provisioner, with Compose's
    containers or a StatefulSet."""
    driver_target: str = ""
    """The Compose project, or the StatefulSet's name."""
    models: list[str] = Field(default_factory=list)
    """Models that stay listed while no engine runs."""
    batches: str = ""
    """Address of the batch service, `unix:PATH` or HOST:PORT, whose batches must end in time."""
    schedulers: str = ""
    """Comma-separated URLs of all scheduler replicas."""
    scheduler_api_key: SecretStr = SecretStr("")
    """Bearer key of the schedulers, if any."""
    scheduler_api_key_file: str = ""
    """File of that key."""
    instances: str = "[]"
    """Engines: a JSON list of {instance_id, url, predictor}, a file of it, or a cluster file; files
    are read again when they change."""
    keda: str = ""
    """gRPC address of an external scaler for KEDA; other hosts need certificates on both sides."""
    webhook: str = ""
    """URL to which the desired number of engines is posted, signed with the secret."""
    webhook_secret_file: str = ""
    """File of the secret of the webhook."""

    @model_validator(mode="after")
    def _driver_has_a_target(self) -> Self:
        if self.driver in ("docker", "kubernetes") and not self.driver_target:
            raise ValueError(f"driver: {self.driver} needs driver_target")
        return self

    @model_validator(mode="after")
    def _webhook_has_a_secret(self) -> Self:
        if self.webhook and not self.webhook_key():
            raise ValueError("webhook: it needs a secret, in webhook_secret_file")
        return self

    def webhook_key(self) -> bytes:
        """The secret of the webhook; ValueError if its file cannot be read."""
        found = _or_from_file(SecretStr(""), "webhook_secret_file", self.webhook_secret_file)
        return found.get_secret_value().encode()

    @model_validator(mode="after")
    def _strategy_can_be_built(self) -> Self:
        build_strategy(self.strategy, self.strategy_parameters)
        return self


class BatchSettings(ListeningSettings, BatchOptions):
    """The service of files and batches."""

    model_config = _config("BATCH")

    schedulers: str = ""
    """Comma-separated URLs of all scheduler replicas."""
    profile: Profile = ""
    """GPU profile DEVICE/MODEL by which batches are ordered; empty: by shared beginnings alone."""
    ttft_target_ms: float = Field(0.0, ge=0)
    """TTFT target of online requests that batches may not endanger; 0: 1.5 times that without
    batches."""


class EmulatorSettings(ServiceSettings):
    """The emulated engine: the twin driven by a clock. No GPU, no model."""

    model_config = _config("EMULATOR")

    name: str = "engine-0"
    """Name of the engine."""
    snapshot_endpoint: str = ""
    """Where to publish snapshots: shm://PATH; empty: nowhere."""
    profile: Annotated[str, AfterValidator(check_shipped_profile)] = EMULATED_PROFILE
    """Shipped GPU profile that is emulated."""
    model_name: str = ""
    """Name served; empty: the profile's model."""
    speedup: float = Field(1.0, gt=0)
    """Factor on the profile's speed."""
    noise_ratio: float = Field(0.05, ge=0, lt=1)
    """Standard deviation of step time around the profile's."""
    max_num_seqs: int = Field(0, ge=0)
    """vLLM's limit; 0: the profile's."""
    max_num_batched_tokens: int = Field(0, ge=0)
    """vLLM's limit; 0: the profile's."""
    max_model_len: int = Field(0, ge=0)
    """vLLM's limit; 0: the profile's."""
    total_blocks: int = Field(0, ge=0)
    """Number of KV blocks; 0: the profile's."""
    offline: bool = False
    """Whether offline requests get what online ones leave, as with vLLM's `CoScheduler`."""


class PluginSettings(BaseSettings):
    """Read inside vLLM's engine process by the plugin (variables only; it has no flags)."""

    model_config = _config("PLUGIN")

    snapshot_endpoint: str = ""
    """Where to publish snapshots: shm://PATH; empty: the plugin stays off."""
    instance_id: str = "engine-0"
    """Name of the engine."""
    ranks: int = Field(1, ge=1)
    """Data-parallel ranks with a sidecar each: behind the first's endpoint the others' has `.rank1`
    and so on."""


class LauncherSettings(ProcessSettings):
    """Starts one engine, emulated or vLLM, with its predictor sidecar."""

    model_config = _config("LAUNCHER")

    engine: Literal["emulated", "vllm"] = "emulated"
    """Engine to start."""
    name: str = "engine-0"
    """Name of the engine."""
    host: str = "127.0.0.1"
    """Address the engine listens on."""
    port: Port = 0
    """Port the engine listens on; 0 takes a free one."""
    run_dir: str = ""
    """Folder of sockets and logs; empty: a new one."""
    predictor_listen: str = ""
    """Address of the sidecar, comma-separated those of ranks; empty: unix sockets in
    run_dir."""
    ranks: int = Field(1, ge=1, le=64)
    """vLLM: data-parallel ranks, each with a sidecar."""
    profile: Profile = ""
    """GPU profile of the emulated engine, and for the sidecar to start from."""
    model: str = ""
    """vLLM: model folder or name."""
    served_model_name: str = ""
    """Name served; empty: the engine's default."""
    python: str = ""
    """vLLM: Python that has vllm installed; empty: this one."""
    engine_args: str = ""
    """Further engine flags, split as a shell would."""
    log_format: LogFormat = "text"
    """`json`: one JSON object a line."""
    gpus: str = Field("", pattern=r"^(\d+(,\d+)*)?$")
    """vLLM: comma-separated indices among the visible GPUs; empty: all."""
    restart: bool = True
    """Start the sidecar again when it ends."""
    ready_file: str = ""
    """File for the address and pid, as JSON, once the process serves."""
    engine_api_key_file: str = ""
    """vLLM: file of the engine's bearer key."""
    ready_timeout_s: float = Field(300.0, gt=0)
    """Longest time until the engine must serve."""

    @model_validator(mode="after")
    def _vllm_has_a_model(self) -> Self:
        if self.engine == "vllm" and not self.model:
            raise ValueError("model: vLLM needs a model folder or name")
        return self


ALL_SETTINGS: tuple[type[BaseSettings], ...] = (
    SchedulerSettings,
    PredictorSettings,
    TaggerSettings,
    ProvisionerSettings,
    BatchSettings,
    EmulatorSettings,
    PluginSettings,
    LauncherSettings,
)
