"""What operators decide: the sections of a cluster file, described once.

A process's own settings (`foretell.config.settings`) inherit the fields of its section, so a name
and its meaning are the same in the file, in an environment variable and as a flag.
"""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from foretell.config.policies import build_policy
from foretell.config.profiles import check_profile
from foretell.model.limits import limits_of
from foretell.provision import ProvisionConfig

_PROVISION = ProvisionConfig()

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]
Profile = Annotated[str, AfterValidator(check_profile)]


def _from_its_folder(path: str, info: ValidationInfo) -> str:
    """Resolve a path of a cluster file from the file's folder; leave other paths as they are."""
    folder = (info.context or {}).get("folder")
    return str(folder / path) if folder and path else path


def _if_a_folder(name: str, info: ValidationInfo) -> str:
    """The folder of that name beside the cluster file, if there is one; else the name."""
    path = _from_its_folder(name, info)
    return path if name and Path(path).is_dir() else name


FilePath = Annotated[str, AfterValidator(_from_its_folder)]
FolderOrName = Annotated[str, AfterValidator(_if_a_folder)]
Port = Annotated[int, Field(ge=0, le=65535)]


class Section(BaseModel):
    """One section; a field that is not known is an error."""

    model_config = ConfigDict(extra="forbid", defer_build=True)


def _check_name(name: str) -> str:
    build_policy(name, {})
    return name


PolicyName = Annotated[
    str,
    AfterValidator(_check_name),
    Field(
        description=(
            "Placement policy: `slo`, `least_outstanding` or `round_robin`; `baselines.NAME` for "
            "comparison."
        ),
        examples=["slo", "least_outstanding", "round_robin"],
    ),
]

PolicyParameters = Annotated[
    dict[str, Any],
    Field(description="Parameters of the policy, such as `tolerance` of `slo`."),
]


class PolicySection(Section):
    """Which engine gets a request."""

    name: PolicyName = "slo"
    parameters: PolicyParameters = Field(default_factory=dict)

    @field_validator("parameters")
    @classmethod
    def _are_known(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        if "name" in info.data:
            build_policy(info.data["name"], value)
        return value


class TargetsSection(Section):
    """Latency targets of requests that bring none in their headers."""

    ttft_target_ms: float = Field(0.0, ge=0)
    """TTFT target of requests without the header `x-foretell-ttft-target-ms`; 0: none."""
    tpot_target_ms: float = Field(0.0, ge=0)
    """TPOT target of requests without the header `x-foretell-tpot-target-ms`; 0: none."""
    late_requests: Literal["serve", "reject"] = "serve"
    """Whether a request that no engine is predicted to start within its TTFT target is served,
    later where others can still be in time, or rejected with status 429. The header
    `x-foretell-when-late` overrides this."""


def bracketed(host: str) -> str:
    """A host as it is written before a port: IPv6 addresses in brackets."""
    return f"[{host}]" if ":" in host else host


def check_https(listening: object, certificate: str, key: str) -> None:
    """ValueError if TLS is used without the files that it needs."""
    if listening and not (certificate and key):
        raise ValueError("TLS needs https_certificate and https_key")


class SchedulerOptions(Section):
    """What the OpenAI endpoint accepts, and how long it waits for others."""

    api_keys_file: FilePath = ""
    """File of the bearer keys of callers, one per line, or YAML with names and limits; empty: the
    variable FORETELL_SCHEDULER_API_KEYS; without either, anyone may call."""
    engine_api_key_file: FilePath = ""
    """File of the bearer key of the engines, which launchers hand to vLLM; empty: the variable
    FORETELL_SCHEDULER_ENGINE_API_KEY, if any."""
    https_certificate: FilePath = ""
    """PEM file of the certificate chain that clients see; it is read again when it changes."""
    https_key: FilePath = ""
    """PEM file of its private key."""
    cors_origins: list[str] = Field(default_factory=list)
    """Origins whose pages may call from a browser, such as https://chat.example.org; "*": any."""
    max_body_bytes: int = Field(48 << 20, gt=0)
    """Largest request body accepted."""
    stream_keep_alive_s: float = Field(0.0, ge=0.0)
    """A stream that is silent for so long gets its headers and a comment, so that proxies do not
    cut it; later failures are then reported in the stream. Where predictions tell what is left of
    the answer, such a comment says so, and comes that often. 0: never."""
    max_concurrent_requests: int = Field(4096, gt=0)
    """Requests in progress beyond which new ones get status 429."""
    engine_wait_s: float = Field(10.0, ge=0)
    """Longest wait for an engine while none that serves the model is up; then status 503."""
    wake_engines: bool = False
    """Whether a request wakes an engine in vLLM's sleep mode if none else of its model is up."""
    request_timeout_s: float = Field(600.0, gt=0)
    """Longest silence of an engine during an answer."""
    drain_timeout_s: float = Field(25.0, gt=0)
    """Time for requests in progress to end at shutdown."""
    explain_ratio: float = Field(0.0, ge=0, le=1)
    """Share of requests whose lines in the request log explain their placement, as
    `foretell explain` does; each costs some milliseconds of CPU."""
    tagger_wait_ms: float = Field(0.0, ge=0, le=1000)
    """Longest wait of a placement for the tagger's estimate of the length; the small model's counts
    after it. 0: none waits, and the estimate corrects the reservation. For a tagger on a GPU, where
    requests wait long in queues."""
    tokenizer: FilePath = ""
    """tokenizer.json, or its folder, to count prompt tokens with; empty: they are estimated from
    characters by a learned ratio."""
    length_model: FolderOrName = "shipped"
    """Folder of a small length model (`foretell train-small-tagger`), `shipped`, or `none`: lengths
    are estimated from finished requests alone."""


class TaggerOptions(Section):
    """The service that estimates output lengths from prompts."""

    model: FolderOrName = "shipped"
    """Folder of a length model (`foretell train-tagger`), `shipped`, or `none`."""
    checkpoint: FilePath = ""
    """Folder of a Hugging Face sequence-regression checkpoint to use instead."""
    checkpoint_target: Literal["tokens", "log_tokens"] = "tokens"
    """What the checkpoint predicts: tokens, or their natural logarithm."""
    threads: int = Field(1, gt=0)
    """CPU threads of the length model."""


class TrafficOptions(Section):
    """How what schedulers, provisioner, predictors and tagger say to each other is protected.

    On one host it passes through unix sockets and needs nothing. Across hosts the services demand
    a shared secret; certificates encrypt the traffic too.
    """

    secret_file: FilePath = ""
    """File of the secret shared by schedulers, predictors and tagger. Those that other hosts can
    reach refuse to start without a secret or certificates."""
    tls_certificate: FilePath = ""
    """PEM file of the certificate that predictors and tagger present."""
    tls_key: FilePath = ""
    """PEM file of its private key."""
    tls_authority: FilePath = ""
    """PEM file of the authority that signed the certificates. Schedulers then use TLS; if they have
    a certificate too, it is demanded of them."""


class BatchOptions(Section):
    """What the batch service keeps."""

    folder: FilePath = ""
    """Folder of the database and the files, on a local disk; empty: no batches are served."""
    database_url: str = Field("", examples=["postgresql://foretell@db/batches"])
    """Postgres instead of the folder's database; passwords come from libpq's sources, such as
    PGPASSFILE."""
    files_url: str = Field("", examples=["s3://bucket/batches"])
    """Object storage instead of the folder's files; credentials come from its clients' sources,
    such as AWS_PROFILE."""
    tenant_bytes: int = Field(20 << 30, gt=0)
    """Bytes of files per caller, beyond which uploads get status 413."""


class ModelSection(Section):
    """A model that engines serve under the section's name."""

    path: FolderOrName = ""
    """vLLM: folder of the model, or its name on the hub; empty: the name of the section."""
    args: str = Field("", examples=["--max-model-len 16384"])
    """Further flags of engines with this model, split as a shell would."""


class EngineSection(Section):
    """One engine, or several alike on one host."""

    name: str = Field("", pattern="^([A-Za-z0-9][A-Za-z0-9._-]*)?$")
    """Name of the engine; several alike are NAME-0, NAME-1 and so on. Empty: engine-0 and so on."""
    engines: int = Field(1, ge=1, le=64)
    """Number of engines like this one on the host."""
    kind: Literal["vllm", "emulated", "sglang", "tensorrt-llm", "openai"] = "vllm"
    """vLLM, or an emulated engine: no GPU, no model, random words at the speed of a GPU profile.
    The others, and vLLM without the plugin, run at `url`; `openai` is any server of its API."""
    url: str = Field("", pattern="^(https?://.+)?$", examples=["http://10.0.0.5:30000"])
    """URL of an engine that somebody else starts. Its state is observed from outside, so that
    predictions are approximations."""
    model: str = ""
    """Name of a section of `models`; empty: the only one."""
    profile: Profile = ""
    """GPU profile DEVICE/MODEL: the speed of an emulated engine, and the start of predictions until
    the engine is calibrated."""
    host: str = ""
    """Name or address of the host; empty: the only host of the cluster."""
    port: int = Field(0, ge=0, le=65535)
    """HTTP port of the first of these engines; the others follow. 0: the next free from 8100 on."""
    predictor_port: int = Field(0, ge=0, le=65535)
    """Port of the first predictor, in a cluster of several hosts; 0: the next from 8200 on."""
    gpus: int = Field(1, ge=1, le=64)
    """GPUs of each vLLM engine, or of each of its ranks, for tensor parallelism."""
    ranks: int = Field(1, ge=1, le=64)
    """Data-parallel ranks behind the endpoint of each vLLM engine: requests are placed on ranks.
    Outside containers only."""
    offline: bool = False
    """Whether these engines serve offline requests, such as those of batches, with what online ones
    leave."""
    args: str = Field("", examples=["--gpu-memory-utilization 0.92", "--speedup 10"])
    """Further flags of these engines, split as a shell would; with `url` those that it was started
    with, of which the ones that state limits count, such as `--max-num-seqs`."""
    python: FilePath = ""
    """Python that has vLLM installed, outside containers; empty: this one."""
    start_timeout_s: float = Field(300.0, gt=0)
    """Longest time until an engine must serve."""

    @property
    def is_started(self) -> bool:
        """Whether these engines are started with the cluster."""
        return not self.url

    @model_validator(mode="after")
    def _is_at_its_url(self) -> Self:
        if not self.url and self.kind not in ("vllm", "emulated"):
            raise ValueError(f"an engine of the kind {self.kind} needs its url")
        if self.url and (self.kind == "emulated" or max(self.engines, self.ranks) > 1):
            raise ValueError("an emulated engine, several, or ranks have no url")
        if self.url:
            limits_of(self.args)
        return self


class SchedulersSection(SchedulerOptions):
    """The OpenAI endpoint: replicas that share no state."""

    replicas: int = Field(2, ge=1, le=16)
    """Number of scheduler processes."""
    host: str = ""
    """Host of the schedulers, in a cluster of several; empty: that of the first engine."""
    listen: str = "127.0.0.1"
    """Address that the schedulers listen on."""
    port: Port = 8000
    """Port of the endpoint, shared by the processes of a host; in containers the replicas have
    consecutive ports."""
    https_port: Port = 0
    """Port with TLS; the ports without it are then on the loopback alone. 0: none."""
    envoy: bool = False
    """Whether an Envoy serves the endpoint, asks schedulers where each request goes, and relays."""

    @model_validator(mode="after")
    def _https_has_its_files(self) -> Self:
        check_https(self.https_port, self.https_certificate, self.https_key)
        return self

    @property
    def plain_listen(self) -> str:
        """Address of the ports without TLS."""
        return "127.0.0.1" if self.https_port else self.listen

    def near_url(self, port: int) -> str:
        """Where processes on the same host reach a port without TLS."""
        everywhere = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104
        return f"http://{bracketed(everywhere.get(self.plain_listen, self.plain_listen))}:{port}"


class TaggerSection(TaggerOptions):
    """The service that estimates output lengths from prompts."""

    host: str = ""
    """Host of the tagger; empty: that of the schedulers."""
    port: Port = 8300
    """gRPC port of the tagger, in a cluster of several hosts."""


class ProvisionOptions(Section):
    """How many engines there should be."""

    strategy: Literal["foresight", "target", "saturation", "relief", "preempt", "static"] = (
        "foresight"
    )
    """`foresight` simulates the coming minutes, `target` keeps a number of requests per engine,
    `saturation`, `relief` and `preempt` follow a threshold, `static` is a fixed number."""
    strategy_parameters: dict[str, Any] = Field(default_factory=dict)
    """Parameters of the strategy, such as `ttft_s`, `tpot_s` and `within` of `foresight`."""
    minimum: int = Field(_PROVISION.minimum, ge=0)
    """Least number of engines; 0: the first request that waits starts one."""
    maximum: int = Field(_PROVISION.maximum, ge=1)
    """Greatest number of engines."""
    cool_down_s: float = Field(_PROVISION.cool_down_s, ge=0)
    """The number is the greatest that was wanted within so many seconds."""
    give_up_s: float = Field(_PROVISION.give_up_s, gt=0)
    """An engine that is not ready so long after its start is given up."""
    every_s: float = Field(5.0, gt=0)
    """Pause between two decisions."""

    @model_validator(mode="after")
    def _bounds_agree(self) -> Self:
        self.provision_config()
        return self

    def provision_config(self) -> ProvisionConfig:
        """The bounds within which the strategy moves; ValueError where they contradict."""
        return ProvisionConfig(
            minimum=self.minimum,
            maximum=self.maximum,
            cool_down_s=self.cool_down_s,
            give_up_s=self.give_up_s,
            stale_s=max(_PROVISION.stale_s, 3 * self.every_s),
        )


class ProvisioningSection(ProvisionOptions):
    """How many engines there should be, where `foretell up` starts and stops them by itself."""

    enabled: bool = False
    """Whether engines come and go: up to `maximum`, each like the first of `engines`."""


class ObservabilitySection(Section):
    """What the cluster tells about itself."""

    log_level: LogLevel = "info"
    """Least severe level that is logged; `debug` has lines about each request."""
    log_format: LogFormat = "text"
    """`json`: one JSON object a line, with `request_id` where it is about a request."""
    request_log: bool = True
    """Whether each scheduler process appends a JSON line per request to NAME.requests.jsonl in
    `run_dir`; containers write none."""
    prometheus_port: Port = 0
    """In compose files: loopback port of a Prometheus in the profile `observability`; 0: none."""
