"""The part of the chart's values schema that comes from the cluster file.

`values.schema.json` is written by hand, except for the sections of the cluster file: `make chart`
inserts them from `foretell.config`.
"""

import json
from typing import Any

from pydantic import BaseModel, ConfigDict

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
from foretell.tools.chart.rendered import CHART

_FILE = CHART / "values.schema.json"


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


def _drop(schema: dict[str, Any], *fields: str) -> None:
    for field in fields:
        schema["properties"].pop(field)


class ClusterSections(BaseModel):
    """Sections of the cluster file, as it has them."""

    model_config = ConfigDict(extra="forbid", defer_build=True)

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


def schema() -> str:
    """The JSON Schema of the values with the sections of the cluster file as they are now."""
    found = json.loads(_FILE.read_text(encoding="utf-8"))
    describe(ClusterSections)
    sections = _plain(ClusterSections.model_json_schema())
    found["$defs"] |= sections.pop("$defs") | {"ClusterSections": sections}
    return json.dumps(found, indent=1).replace("\\n", " ") + "\n"


def _plain(part: Any) -> Any:
    """Remove what only Pydantic adds: titles, and defaults, which values.yaml has."""
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
    """Write the schema; as `__main__` the module has no docstrings to read."""
    _FILE.write_text(schema(), encoding="utf-8")
