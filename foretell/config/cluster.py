"""The cluster file: which models, engines and services a cluster has, each named once."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self, get_args

from pydantic import BaseModel, BeforeValidator, Field, IPvAnyAddress, ValidationError

from foretell.config.described import describe
from foretell.config.marks import (
    ClusterError,
    Document,
    Location,
    field_name,
    nearest,
    parse,
    plain,
)
from foretell.config.profiles import check_shipped_profile
from foretell.config.sections import (
    BatchOptions,
    EngineSection,
    FilePath,
    ModelSection,
    ObservabilitySection,
    PolicySection,
    ProvisioningSection,
    SchedulersSection,
    Section,
    TaggerSection,
    TargetsSection,
    TrafficOptions,
)

_FIRST_PORT, _FIRST_PREDICTOR_PORT = 8100, 8200
FRAMES_PORTS_ABOVE = 1000
"""Predictors accept streams of frames on the port that is this much above their own."""
_LAST_PORT = 65535


@dataclass(frozen=True, slots=True)
class ClusterEngine:
    """One engine of a cluster, with everything that is derived from its section."""

    name: str
    section: EngineSection
    host: str
    port: int
    predictor_port: int
    gpus: tuple[int, ...]
    """Indices of its GPUs on its host; empty for an emulated engine."""
    model_name: str
    """Name that clients ask for; "" leaves it to the emulated engine's profile."""
    model: ModelSection

    @property
    def rank_names(self) -> tuple[str, ...]:
        """The names of its data-parallel ranks; with a single rank, its own name."""
        ranks = self.section.ranks
        return tuple(f"{self.name}.rank{k}" for k in range(ranks)) if ranks > 1 else (self.name,)


def _alike(value: object) -> object:
    """`engines: 8` is short for eight equal engines."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return [{"engines": value}] if is_number else value


def _with_number(schema: dict[str, Any]) -> None:
    """Allow a number in the schema, too, for editors."""
    description = schema.pop("description")
    listed = {key: schema.pop(key) for key in ("items", "type", "minItems") if key in schema}
    schema["description"] = description
    schema["anyOf"] = [{"type": "integer", "minimum": 1, "maximum": 64}, listed]


class Cluster(Section):
    """A cluster of engines with the services in front of them."""

    name: str = Field("foretell", pattern="^[a-z0-9][a-z0-9_-]*$")
    """Name of the cluster, its containers and folders."""
    models: dict[str, ModelSection] = Field(default_factory=dict)
    """Models by the name that clients ask for; emulated engines need none."""
    engines: Annotated[list[EngineSection], BeforeValidator(_alike)] = Field(
        min_length=1, json_schema_extra=_with_number
    )
    """The engines, one item per kind and host; a number: so many alike."""
    policy: PolicySection = Field(default_factory=PolicySection)
    """Which engine gets a request."""
    targets: TargetsSection = Field(default_factory=TargetsSection)
    """Latency targets of requests that bring none in their headers."""
    schedulers: SchedulersSection = Field(default_factory=SchedulersSection)
    """The OpenAI endpoint."""
    tagger: TaggerSection = Field(default_factory=TaggerSection)
    """The service that estimates output lengths from prompts."""
    batches: BatchOptions = Field(default_factory=BatchOptions)
    """The Batch API, on the host of the schedulers."""
    traffic: TrafficOptions = Field(default_factory=TrafficOptions)
    """Protection of the calls between services."""
    provisioning: ProvisioningSection = Field(default_factory=ProvisioningSection)
    """How many engines there should be, where they come and go."""
    observability: ObservabilitySection = Field(default_factory=ObservabilitySection)
    """Logs and metrics."""
    addresses: dict[str, IPvAnyAddress] = Field(default_factory=dict)
    """In compose files: IP addresses of hosts by their names, where no DNS server knows these;
    containers do not see what their host's /etc/hosts says."""
    run_dir: FilePath = ""
    """Folder of the sockets of processes on this host; empty: `foretell-NAME` in the user's folder
    for such files."""

    def engine_list(self) -> tuple[ClusterEngine, ...]:
        """Every engine, in the order of the file."""
        unnamed = 0
        following: dict[tuple[str, str], int] = defaultdict(int)
        found = []
        for section in self.engines:
            host = section.host or self.host_names()[0]
            following[host, "port"] = section.port or following[host, "port"] or _FIRST_PORT
            first = following[host, "predictor"] or _FIRST_PREDICTOR_PORT
            following[host, "predictor"] = section.predictor_port or first
            model_name = section.model or next(iter(self.models), "")
            for index in range(section.engines):
                if not section.name:
                    name, unnamed = f"engine-{unnamed}", unnamed + 1
                else:
                    name = f"{section.name}-{index}" if section.engines > 1 else section.name
                first_gpu = following[host, "gpu"]
                needs = section.kind == "vllm" and section.is_started
                gpus = section.gpus * section.ranks if needs else 0
                following[host, "gpu"] += gpus
                found.append(
                    ClusterEngine(
                        name=name,
                        section=section,
                        host=host,
                        port=following[host, "port"],
                        predictor_port=following[host, "predictor"],
                        gpus=tuple(range(first_gpu, first_gpu + gpus)),
                        model_name=model_name,
                        model=self.models.get(model_name, ModelSection()),
                    )
                )
                following[host, "port"] += 1
                following[host, "predictor"] += section.ranks
        return tuple(found)

    def host_names(self) -> tuple[str, ...]:
        """Every host, the schedulers' first; ("",) for a cluster on this host alone."""
        engine_hosts = [section.host for section in self.engines]
        first = self.schedulers.host or engine_hosts[0]
        named = [first, self.tagger.host or first, *engine_hosts]
        return tuple(dict.fromkeys(host for host in named if host)) or ("",)

    def scheduler_names(self) -> tuple[str, ...]:
        """`scheduler-0` and so on."""
        return tuple(f"scheduler-{index}" for index in range(self.schedulers.replicas))

    def with_places(self) -> Self:
        """The cluster with as many engines as a provisioner may start."""
        if not self.provisioning.enabled:
            return self
        places = self.engines[0].model_copy(update={"engines": self.provisioning.maximum})
        return self.model_copy(update={"engines": [places]})

    def checked(self) -> Self:
        """The cluster itself; ClusterError if its sections contradict each other."""
        problems = [f"{field_name(at)}: {what}" for at, what in _contradictions(self)]
        if problems:
            raise ClusterError("\n".join(problems))
        return self


def cluster_schema() -> str:
    """The JSON Schema of cluster files, which ships as `cluster.schema.json` for editors."""
    describe(Cluster)
    schema = Cluster.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return json.dumps(schema, indent=1).replace("\\n", " ") + "\n"  # descriptions are wrapped


def load_cluster(path: str | Path) -> Cluster:
    """The cluster that a file describes.

    ClusterError lists all mistakes, each with line, column and field.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ClusterError(f"cannot read the cluster file {path}: {error}") from error
    return parse_cluster(text, str(path), Path(path).absolute().parent)


def parse_cluster(text: str, source: str, folder: Path | None = None) -> Cluster:
    """The cluster that a file's text describes; `source` names the file in messages.

    Paths in it become absolute, as seen from `folder`.
    """
    document = parse(text, source)
    try:
        cluster = Cluster.model_validate(document.data, context={"folder": folder})
    except ValidationError as error:
        problems = [_explain(document, dict(item)) for item in error.errors()]
        raise ClusterError("\n".join(problems)) from None  # pydantic's text would show values
    problems = [document.problem(at, what) for at, what in _contradictions(cluster)]
    if problems:
        raise ClusterError("\n".join(problems))
    return cluster


def _contradictions(cluster: Cluster) -> Iterator[tuple[Location, str]]:
    """Contradictions between sections: where each is, and what to do about it."""
    hosts = cluster.host_names()
    for index, section in enumerate(cluster.engines):
        at = ("engines", index)
        if section.model and section.model not in cluster.models:
            known = ", ".join(cluster.models) or "none"
            yield (*at, "model"), f"no section of `models` has this name; there are: {known}"
        elif not section.model and len(cluster.models) > 1:
            known = ", ".join(cluster.models)
            yield (*at, "model"), f"say which section of `models` it serves: {known}"
        elif section.kind == "vllm" and section.is_started and not cluster.models:
            yield at, "vLLM needs a model: add a section like `models: {NAME: {path: FOLDER}}`"
        if section.kind == "emulated" and section.profile:
            try:
                check_shipped_profile(section.profile)
            except ValueError as error:
                yield (*at, "profile"), f"an emulated engine needs a shipped profile: {error}"
        if len(hosts) > 1 and not section.host:
            yield (*at, "host"), "a cluster of several hosts needs the host of every engine"
    if cluster.batches.folder and cluster.schedulers.envoy:
        yield ("batches", "folder"), "an Envoy does not serve batches: leave out schedulers.envoy"
    if cluster.schedulers.https_port and cluster.schedulers.envoy:
        yield ("schedulers", "https_port"), "an Envoy serves no TLS: leave out schedulers.envoy"
    keys, secret = cluster.schedulers.api_keys_file, cluster.traffic.secret_file
    if cluster.batches.folder and keys and not secret:
        text = "batches of callers with keys need `traffic.secret_file`"
        yield ("batches", "folder"), f"{text}, which schedulers and the batch service share"
    if cluster.provisioning.enabled and not cluster.engines[0].is_started:
        yield ("provisioning", "enabled"), "it starts engines: leave out their url"
    if cluster.provisioning.enabled and len(hosts) > 1:
        yield ("provisioning", "enabled"), f"it starts engines on one host, not on {len(hosts)}"
    yield from _ranks(cluster)
    yield from _clashes(cluster)


def _ranks(cluster: Cluster) -> Iterator[tuple[Location, str]]:
    for index, section in enumerate(cluster.engines):
        where = ("engines", index, "ranks")
        if section.ranks > 1 and (section.kind != "vllm" or section.offline):
            yield where, "only vLLM engines for online requests alone have ranks"
        elif section.ranks > 1 and cluster.provisioning.enabled:
            yield where, "ranks need a cluster where engines do not come and go"
        elif section.ranks > 1 and cluster.schedulers.envoy:
            yield where, "an Envoy that tries again knows no ranks: leave out schedulers.envoy"


def _clashes(cluster: Cluster) -> Iterator[tuple[Location, str]]:
    engines = cluster.engine_list()
    names = Counter(engine.name for engine in engines)
    ports = Counter((engine.host, engine.port) for engine in engines)
    for index, section in enumerate(cluster.engines):
        mine = [engine for engine in engines if engine.section is section]
        if twice := [engine.name for engine in mine if names[engine.name] > 1]:
            yield ("engines", index, "name"), f"two engines are called {twice[0]}"
        if shared := [e.port for e in mine if ports[e.host, e.port] > 1]:
            yield ("engines", index, "port"), f"two engines on this host have port {shared[0]}"
        last_predictor = mine[-1].predictor_port + section.ranks - 1
        if max(mine[-1].port, last_predictor + FRAMES_PORTS_ABOVE) > _LAST_PORT:
            yield ("engines", index, "port"), f"no port is above {_LAST_PORT}"


def _explain(document: Document, item: dict[str, Any]) -> str:
    location = item["loc"]
    if item["type"] == "extra_forbidden":
        known = _fields_at(Cluster, location[:-1])
        hint = nearest(str(location[-1]), known)
        return document.problem(location, f"is not known here; {hint}", at_key=True)
    if item["type"] == "missing":
        return document.problem(location, "is missing")
    return document.problem(location, plain(item["msg"]))


def _fields_at(model: Any, location: Location) -> list[str]:
    """The fields of the section at `location`."""
    for part in location:
        if isinstance(model, type) and issubclass(model, BaseModel) and isinstance(part, str):
            model = model.model_fields[part].annotation
        else:  # an item of a list or a mapping
            model = get_args(model)[-1]
    return list(model.model_fields)
