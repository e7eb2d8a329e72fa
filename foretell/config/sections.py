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
from foretell.placement import PlacementConfig
from foretell.provision import ProvisionConfig

_PLACEMENT = PlacementConfig()
_PROVISION = ProvisionConfig()

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]
Profile = Annotated[str, AfterValidator(check_profile)]


def _from_its_folder(path: str, info: ValidationInfo) -> str:
    """Paths in a cluster file are relative to the file's folder, others to where we stand."""
    folder = (info.context or {}).get("folder")
    return str(folder / path) if folder and path else path


def _if_a_folder(name: str, info: ValidationInfo) -> str:
    """The folder of that name beside the cluster file, where there is one; else the name."""
    path = _from_its_folder(name, info)
    return path if name and Path(path).is_dir() else name


FilePath = Annotated[str, AfterValidator(_from_its_folder)]
FolderOrName = Annotated[str, AfterValidator(_if_a_folder)]
Port = Annotated[int, Field(ge=0, le=65535)]


class Section(BaseModel):
    """One section; a field that is not known is an error."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


def _check_name(name: str) -> str:
    build_policy(name, {})
    return name


PolicyName = Annotated[
    str,
    AfterValidator(_check_name),
    Field(
        description=(
            "Name of the placement policy: `slo`, `least_outstanding` or `round_robin`. For "
            "comparison, `baselines.NAME` names a policy of the laboratory."
        ),
        examples=["slo", "least_outstanding", "round_robin"],
    ),
]

PolicyParameters = Annotated[
    dict[str, Any],
    Field(description="Parameters of the policy itself, such as `tolerance` of `slo`."),
]


class PlacementOptions(Section):
    """Which engines are asked, whatever the policy."""

    candidates: int = Field(_PLACEMENT.candidates, ge=0)
    """Number of predictors that are asked about one placement; 0 asks all."""


class PolicyChoice(Section):
    """A placement policy with its own parameters."""

    name: PolicyName = "slo"
    parameters: PolicyParameters = Field(default_factory=dict)

    @field_validator("parameters")
    @classmethod
    def _are_known(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        if "name" in info.data:
            build_policy(info.data["name"], value)
        return value


class PolicySection(PlacementOptions, PolicyChoice):
    """Which engine gets a request."""


class TargetsSection(Section):
    """Latency targets of requests that bring none in their headers."""

    ttft_target_ms: float = Field(0.0, ge=0)
    """Target for the time to the first token of requests without the header
    `x-foretell-ttft-target-ms`; 0 sets none."""
    tpot_target_ms: float = Field(0.0, ge=0)
    """Target for the time per output token after the first, of requests without the header
    `x-foretell-tpot-target-ms`; 0 sets none."""
    late_requests: Literal["serve", "reject"] = "serve"
    """What happens to a request that no engine is predicted to begin to answer within its TTFT
    target: it is served nevertheless, or rejected with status 429. The header
    `x-foretell-when-late` overrides this."""


def bracketed(host: str) -> str:
    """A host as addresses with a port have it."""
    return f"[{host}]" if ":" in host else host


def check_https(listening: object, certificate: str, key: str) -> None:
    """ValueError unless there are the files that TLS needs, where there is TLS."""
    if listening and not (certificate and key):
        raise ValueError("TLS needs https_certificate and https_key")


class SchedulerOptions(Section):
    """What the OpenAI endpoint accepts, and how long it waits for others."""

    api_keys_file: FilePath = ""
    """File with the bearer keys that may call, one in each line, or a YAML file that names callers
    and their limits; empty: the keys of the environment variable FORETELL_SCHEDULER_API_KEYS, or
    anyone where there is none."""
    engine_api_key_file: FilePath = ""
    """File with the bearer key that the engines want, which launchers hand to vLLM; empty: that of
    FORETELL_SCHEDULER_ENGINE_API_KEY, if any."""
    https_certificate: FilePath = ""
    """PEM file of the certificate that clients see, and of those that vouch for it; it is read
    again when it changes."""
    https_key: FilePath = ""
    """PEM file of that certificate's private key."""
    cors_origins: list[str] = Field(default_factory=list)
    """Origins whose pages may call from a browser, such as https://chat.example.org; "*": any.
    Empty: none."""
    max_body_bytes: int = Field(48 << 20, gt=0)
    """Largest request body accepted."""
    stream_keep_alive_s: float = Field(0.0, ge=0.0)
    """Seconds after which a silent stream gets its headers and a comment, before its first token,
    too, and again after each such silence, so that proxies do not cut it; 0: never. What fails
    after the headers is told in the stream."""
    max_concurrent_requests: int = Field(4096, gt=0)
    """Requests in progress beyond which new ones get status 429."""
    max_attempts: int = Field(_PLACEMENT.max_attempts, gt=0)
    """Engines tried for one request before its first token."""
    engine_wait_s: float = Field(10.0, ge=0)
    """Longest time that a request waits for an engine while none that serves its model is up; then
    it gets status 503."""
    request_timeout_s: float = Field(600.0, gt=0)
    """Longest silence of an engine while it answers a request."""
    health_interval_s: float = Field(0.5, gt=0)
    """Pause between two health probes of an engine."""
    health_timeout_s: float = Field(3.0, gt=0)
    """Longest time that a health probe may take."""
    drain_timeout_s: float = Field(25.0, gt=0)
    """Time that requests in progress get to end at shutdown."""
    explain_ratio: float = Field(0.0, ge=0, le=1)
    """Share of the requests, drawn by their ids, whose lines in the request log say why they went
    where they went, as `foretell explain` does; each takes some milliseconds of CPU."""
    tokenizer: FilePath = ""
    """tokenizer.json, or the folder that holds it, to count the tokens of prompts with; empty:
    their number is estimated from the characters by a learned ratio."""
    length_model: FolderOrName = "shipped"
    """Folder of a small length model made by `foretell train-small-tagger`, which estimates the
    length of each answer when its request arrives; `shipped` is the one that comes with the
    package, `none` estimates from finished requests alone."""


class TaggerOptions(Section):
    """The service that estimates output lengths from prompts."""

    model: FolderOrName = "shipped"
    """Folder of a length model made by `foretell train-tagger`; `shipped` is the one that comes
    with the package, `none` estimates from finished requests alone."""
    checkpoint: FilePath = ""
    """Folder of a Hugging Face sequence-regression checkpoint that is used instead of a length
    model; empty: none."""
    checkpoint_target: Literal["tokens", "log_tokens"] = "tokens"
    """What the checkpoint predicts: tokens, or the natural logarithm of tokens."""
    threads: int = Field(1, gt=0)
    """Threads that the length model computes with."""
    batch_ms: float = Field(10.0, gt=0)
    """Longest time that reading one batch of prompts may take; batches are made smaller where
    reading is slower."""


class TrafficOptions(Section):
    """How gRPC calls between schedulers, predictors and tagger are protected.

    On one host they pass through unix sockets and need nothing. Across hosts the services demand
    a shared secret; certificates encrypt the traffic too.
    """

    secret_file: FilePath = ""
    """File that holds the secret shared by schedulers, predictors and tagger. A predictor or tagger
    that other hosts can reach refuses to start without a secret."""
    tls_certificate: FilePath = ""
    """PEM file of the certificate that predictors and tagger present."""
    tls_key: FilePath = ""
    """PEM file of that certificate's private key."""
    tls_authority: FilePath = ""
    """PEM file of the authority that signed the certificates. Schedulers then call with TLS; where
    they have a certificate too, predictors and tagger demand it of them."""


class BatchOptions(Section):
    """What the batch service keeps."""

    folder: FilePath = ""
    """Folder of the database and of all files, on a local disk; empty: no batches are served."""
    database_url: str = Field("", examples=["postgresql://foretell@db/batches"])
    """Postgres in the place of the folder's database. Passwords come from where libpq takes them,
    such as PGPASSFILE."""
    files_url: str = Field("", examples=["s3://bucket/batches"])
    """Object storage in the place of the folder's files. Credentials come from where the storage's
    clients take them, such as AWS_PROFILE."""
    tenant_bytes: int = Field(20 << 30, gt=0)
    """Bytes of files that one caller may have; more uploads get status 413."""


class ModelSection(Section):
    """A model that engines serve under the section's name."""

    path: FolderOrName = ""
    """vLLM: folder of the model, or its name on the hub; empty: the name."""
    args: str = Field("", examples=["--max-model-len 16384"])
    """Further flags for engines with this model, split as a shell would."""


class EngineSection(Section):
    """One engine, or several alike on one host."""

    name: str = Field("", pattern="^([A-Za-z0-9][A-Za-z0-9._-]*)?$")
    """Name of the engine; with `engines`, the names are NAME-0, NAME-1 and so on. Empty: engine-0,
    engine-1 and so on, in the order of the file."""
    engines: int = Field(1, ge=1, le=64)
    """Number of engines like this one on the same host."""
    kind: Literal["vllm", "emulated"] = "vllm"
    """vLLM, or an emulated engine that needs neither GPU nor model and answers with meaningless
    words at the speed of a GPU profile."""
    model: str = ""
    """Name of a section of `models`; empty: the only one there is."""
    profile: Profile = ""
    """GPU profile DEVICE/MODEL: the speed of an emulated engine, and what predictions start from
    until the engine's own steps have been seen."""
    host: str = ""
    """Name or address of the host; empty: the only host of the cluster."""
    port: int = Field(0, ge=0, le=65535)
    """HTTP port of the first of these engines, the others take those that follow; 0: after the
    engines before on this host, from 8100 on."""
    predictor_port: int = Field(0, ge=0, le=65535)
    """gRPC port of the first predictor in a cluster of several hosts; 0: after those before on this
    host, from 8200 on."""
    gpus: int = Field(1, ge=1, le=64)
    """GPUs of each vLLM engine, for tensor parallelism."""
    offline: bool = False
    """Whether these engines serve offline requests, such as those of batches, beside online ones,
    with what these leave."""
    args: str = Field("", examples=["--gpu-memory-utilization 0.92", "--speedup 10"])
    """Further flags for these engines, split as a shell would."""
    python: FilePath = ""
    """Python that has vLLM installed, outside containers; empty: this one."""
    start_timeout_s: float = Field(300.0, gt=0)
    """Longest time until an engine must serve."""


class SchedulersSection(SchedulerOptions):
    """The OpenAI endpoint: replicas that share no state."""

    replicas: int = Field(2, ge=1, le=16)
    """Number of scheduler processes."""
    host: str = ""
    """Host that the schedulers run on, in a cluster of several; empty: the host of the first
    engine."""
    listen: str = "127.0.0.1"
    """Address that the schedulers listen on."""
    port: Port = 8000
    """Port of the endpoint. Processes on one host share it; in containers, each further replica is
    published at the port that follows."""
    https_port: Port = 0
    """Port where `listen` serves clients with TLS, in the same way; the ports without it are then
    on the loopback alone. 0: none."""
    envoy: bool = False
    """Whether an Envoy serves the endpoint in their place: it asks them where each request goes and
    carries the bytes itself."""

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
    """Host that the tagger runs on; empty: that of the schedulers."""
    port: Port = 8300
    """Its gRPC port, in a cluster of several hosts."""


class ProvisionOptions(Section):
    """How many engines there should be."""

    strategy: Literal["foresight", "target", "saturation", "relief", "preempt", "static"] = (
        "foresight"
    )
    """What decides: `foresight` simulates the coming minutes, `target` keeps a number of requests
    for each engine, `saturation`, `relief` and `preempt` follow a threshold, `static` is a fixed
    number."""
    strategy_parameters: dict[str, Any] = Field(default_factory=dict)
    """Parameters of the strategy itself, such as `ttft_s`, `tpot_s` and `within` of `foresight`."""
    minimum: int = Field(_PROVISION.minimum, ge=0)
    """Engines that there are at least; 0: the first request that waits starts one."""
    maximum: int = Field(_PROVISION.maximum, ge=1)
    """Engines that there are at most."""
    cool_down_s: float = Field(_PROVISION.cool_down_s, ge=0)
    """There are as many engines as were wanted at any time within so many seconds."""
    cold_start_s: float = Field(_PROVISION.cold_start_s, ge=0)
    """Time that an engine is taken to need until it is ready, before one has been measured."""
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
            cold_start_s=self.cold_start_s,
            give_up_s=self.give_up_s,
            stale_s=max(_PROVISION.stale_s, 3 * self.every_s),
        )


class ProvisioningSection(ProvisionOptions):
    """How many engines there should be, where `foretell up` starts and stops them by itself."""

    enabled: bool = False
    """Whether engines come and go: `maximum` counts, each like the first of `engines`, whose own
    number does not."""


class ObservabilitySection(Section):
    """What the cluster tells about itself."""

    log_level: LogLevel = "info"
    """Least severe level that schedulers, predictors and tagger log; `debug` has lines about each
    request."""
    log_format: LogFormat = "text"
    """`json`: every service logs one JSON object a line, with `request_id` where it is about a
    request."""
    request_log: bool = True
    """Whether each scheduler process appends one JSON line per request to NAME.requests.jsonl in
    `run_dir`; containers write none."""
    prometheus_port: Port = 0
    """In compose files: port on the loopback of a Prometheus that is started with the profile
    `observability`; 0: none."""
