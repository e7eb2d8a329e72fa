"""Every field of a cluster file and every setting of a process, as tables."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from inspect import cleandoc
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from pydantic_settings import BaseSettings
from rich.console import Console
from rich.table import Table

from foretell.config import ALL_SETTINGS, Cluster, PluginSettings
from foretell.config.described import describe
from foretell.config.sections import (
    BatchOptions,
    PlacementOptions,
    ProvisionOptions,
    SchedulerOptions,
    TaggerOptions,
    TargetsSection,
    TrafficOptions,
)

_OPTIONS: tuple[tuple[type[BaseModel], str], ...] = (
    (SchedulerOptions, "SCHEDULER"),
    (PlacementOptions, "SCHEDULER"),
    (TargetsSection, "SCHEDULER"),
    (TaggerOptions, "TAGGER"),
    (ProvisionOptions, "PROVISIONER"),
    (BatchOptions, "BATCH"),
    (TrafficOptions, "<SERVICE>"),
)
"""Fields of the cluster file that a process has too, under the same name."""
_RENAMED = {
    "policy.name": "FORETELL_SCHEDULER_POLICY",
    "policy.parameters": "FORETELL_SCHEDULER_POLICY_PARAMETERS",
    "observability.log_level": "FORETELL_<SERVICE>_LOG_LEVEL",
    "observability.log_format": "FORETELL_<SERVICE>_LOG_FORMAT",
}

Row = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class Group:
    """A table of the reference."""

    title: str
    text: str
    columns: Row
    rows: tuple[Row, ...]


def groups() -> list[Group]:
    """The cluster file's fields, then what is set for each process by itself."""
    describe(Cluster)
    for settings in ALL_SETTINGS:
        describe(settings)
    columns = ("field", "default", "variable", "meaning")
    text = (
        "One YAML file describes a cluster. `foretell render schema` prints the JSON Schema by "
        "which editors complete it."
    )
    found = [Group("Cluster file", text, columns, tuple(_fields(Cluster, "")))]
    columns = ("variable", "flag", "default", "meaning")
    for settings in ALL_SETTINGS:
        title = settings.__name__.removesuffix("Settings")
        found.append(Group(title, cleandoc(settings.__doc__ or ""), columns, tuple(_own(settings))))
    return found


def show() -> None:
    """Print one table for the cluster file and one for each process."""
    console = Console()
    for group in groups():
        title = f"{group.title}: {group.text}"
        table = Table(*group.columns, title=title, title_justify="left")
        for row in group.rows:
            table.add_row(*row)
        console.print(table)


def _fields(section: type[BaseModel], prefix: str) -> Iterator[Row]:
    for name, field in section.model_fields.items():
        path = f"{prefix}{name}"
        inner, suffix = _section_in(field)
        if inner is not None and not suffix:
            yield from _fields(inner, f"{path}.")
            continue
        yield path, _default(field), _variable(section, name, path), _describe(field)
        if inner is not None:
            yield from _fields(inner, f"{path}{suffix}.")


def _section_in(field: FieldInfo) -> tuple[type[BaseModel] | None, str]:
    """The section that a field holds, and how its fields are reached: each, by name, or itself."""
    kind: Any = field.annotation
    suffix = {list: "[]", dict: ".NAME"}.get(get_origin(kind) or kind, "")
    kind = get_args(kind)[-1] if suffix else kind
    return (kind, suffix) if isinstance(kind, type) and issubclass(kind, BaseModel) else (None, "")


def _variable(section: type[BaseModel], name: str, path: str) -> str:
    for options, service in _OPTIONS:
        if name in options.model_fields and issubclass(section, options):
            return f"FORETELL_{service}_{name.upper()}"
    return _RENAMED.get(path, "")


def _own(settings: type[BaseSettings]) -> Iterator[Row]:
    """The settings of a process that no section of the cluster file has."""
    prefix = str(settings.model_config.get("env_prefix", ""))
    has_flags = settings is not PluginSettings
    shared = {
        name
        for options, _ in _OPTIONS
        if issubclass(settings, options)
        for name in options.model_fields
    }
    for name, field in settings.model_fields.items():
        if name not in shared:
            flag = f"--{name.replace('_', '-')}" if has_flags else ""
            yield f"{prefix}{name}".upper(), flag, _default(field), _describe(field)


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return ""
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    return value if isinstance(value, str) else json.dumps(value)


def _describe(field: FieldInfo) -> str:
    choices = ""
    if get_origin(field.annotation) is Literal:
        choices = f" One of {', '.join(map(str, get_args(field.annotation)))}."
    return f"{' '.join((field.description or '').split())}{choices}"
