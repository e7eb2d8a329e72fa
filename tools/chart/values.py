"""The values of the Helm chart, from which `make chart` writes their schema.

What is the cluster file's is described there once: its sections are parts of the values.
"""

import json
from typing import Any, Literal

from pydantic import ConfigDict, Field

from foretell.config.described import describe
from foretell.config.sections import (
    BatchOptions,
    LogFormat,
    LogLevel,
    PolicySection,
    ProvisionOptions,
    SchedulerOptions,
    Section,
    TaggerOptions,
    TargetsSection,
)
from foretell.tools.chart.around import (
    Gateway,
    Ingress,
    Monitoring,
    NetworkPolicies,
    PriorityClasses,
    Secrets,
    Spread,
    TrafficTls,
)
from foretell.tools.chart.base import (
    Image,
    Object,
    Objects,
    Values,
    VllmImage,
)
from foretell.tools.chart.serving import (
    Batch,
    Model,
    Predictor,
    Provisioner,
    Schedulers,
    Tagger,
)


class ClusterObservability(Section):
    """Logs."""

    log_level: LogLevel = "info"
    """Least severe level that is logged."""
    log_format: LogFormat = "text"
    """`json`: one JSON object a line."""


class _Schedulers(SchedulerOptions):
    __doc__ = SchedulerOptions.__doc__
    model_config = ConfigDict(
        json_schema_extra=lambda schema: _drop(
            schema, "api_keys_file", "engine_api_key_file", "https_certificate", "https_key"
        )
    )


class _Batches(BatchOptions):
    __doc__ = BatchOptions.__doc__
    model_config = ConfigDict(json_schema_extra=lambda schema: _drop(schema, "folder"))


class _Provisioning(ProvisionOptions):
    __doc__ = ProvisionOptions.__doc__
    model_config = ConfigDict(json_schema_extra=lambda schema: _drop(schema, "minimum", "maximum"))


def _drop(schema: Object, *fields: str) -> None:
    for field in fields:
        schema["properties"].pop(field)


class ClusterSections(Values):
    """Sections of the cluster file, as it has them."""

    policy: PolicySection
    """Which engine gets a request."""
    targets: TargetsSection
    """Latency targets of requests that bring none in their headers."""
    schedulers: _Schedulers
    """What the OpenAI endpoint accepts, and how long it waits. Keys are under `secrets`."""
    tagger: TaggerOptions
    """The service that estimates output lengths from prompts."""
    batches: _Batches
    """Where batches are kept, with `batch.enabled`."""
    provisioning: _Provisioning
    """How many engines there should be, where a model's `autoscaling` asks a provisioner."""
    observability: ClusterObservability
    """Logs."""


class ChartValues(Values):
    """Values of the Helm chart of Foretell."""

    image: Image
    """The image of all services that need no GPU."""
    vllm_image: VllmImage
    """The image of vLLM engines."""
    models: list[Model] = Field(min_length=1)
    """The engines, an item for each kind."""
    cluster: ClusterSections
    """Sections of the cluster file."""
    secrets: Secrets
    """Secrets, by reference."""
    traffic_tls: TrafficTls
    """TLS between services."""
    schedulers: Schedulers
    """The OpenAI endpoint."""
    tagger: Tagger
    """The tagger."""
    predictor: Predictor
    """The sidecars of engines."""
    provisioner: Provisioner
    """The provisioner."""
    batch: Batch
    """The batch service."""
    spread: Spread
    """How pods are spread."""
    priority_classes: PriorityClasses
    """Priority classes."""
    service_account_annotations: dict[
        Literal["engine", "scheduler", "tagger", "batch", "provisioner"], dict[str, str]
    ]
    """Annotations of ServiceAccounts by component, as clouds give rights by."""
    network_policies: NetworkPolicies
    """Who may speak to pods."""
    ingress: Ingress
    """An Ingress."""
    gateway: Gateway
    """Gateway API."""
    monitoring: Monitoring
    """Metrics, alerts and dashboards."""
    extra_objects: Objects
    """More objects of the release; their text may have Helm's templates."""
    global_: Object = Field(default_factory=dict, alias="global")
    """Unused: Helm adds it where this chart is part of another."""


def schema() -> str:
    """The JSON Schema of the values, as `values.schema.json` has it."""
    describe(ChartValues)
    found = ChartValues.model_json_schema()
    found["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return json.dumps(_plain(found), indent=1).replace("\\n", " ") + "\n"


def _plain(part: Any) -> Any:
    """Without what only Pydantic wants: titles, and defaults, which are values.yaml's."""
    if isinstance(part, list):
        return [_plain(each) for each in part]
    if not isinstance(part, dict):
        return part
    return {
        key: {name: _plain(each) for name, each in value.items()}
        if key in ("properties", "$defs")
        else _plain(value)
        for key, value in part.items()
        if key not in ("title", "default")
    }


def main() -> None:
    """Write the schema beside the values; as `__main__` the module has no docstrings to read."""
    from foretell.tools.chart.rendered import CHART

    (CHART / "values.schema.json").write_text(schema(), encoding="utf-8")
