"""Every field of a cluster file and every setting of a process."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from inspect import cleandoc
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from pydantic_settings import BaseSettings

from foretell.config import ALL_SETTINGS, Cluster
from foretell.config.described import describe
from foretell.config.sections import (
    BatchOptions,
    ProvisionOptions,
    SchedulerOptions,
    TaggerOptions,
    TargetsSection,
    TrafficOptions,
)

_OPTIONS: tuple[type[BaseModel], ...] = (
    SchedulerOptions,
    TargetsSection,
    TaggerOptions,
    ProvisionOptions,
    BatchOptions,
    TrafficOptions,
)
"""Fields of the cluster file that a process has too, under the same name."""
_SHARED_BY = 4
"""A setting that so many processes describe in the same words is listed once."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One field, setting or option."""

    name: str
    default: str
    meaning: str
    of_process: bool = False
    """A field of the cluster file that is a setting of its process, too."""


@dataclass(frozen=True, slots=True)
class Group:
    """A list of the reference."""

    title: str
    text: str
    entries: tuple[Entry, ...]


def groups() -> list[Group]:
    """The cluster file's fields, what all processes have, then what each has by itself."""
    describe(Cluster)
    for settings in ALL_SETTINGS:
        describe(settings)
    text = (
        "One YAML file describes a cluster; editors complete it by the JSON Schema that "
        "`foretell render schema` prints. Those marked \\* are settings of their process, too."
    )
    own = {settings: tuple(_own(settings)) for settings in ALL_SETTINGS}
    listed = [entry for entries in own.values() for entry in entries]
    shared = tuple(each for each in dict.fromkeys(listed) if listed.count(each) >= _SHARED_BY)
    found = [
        Group("Cluster file", text, tuple(_fields(Cluster, ""))),
        Group("Processes", "What most processes have.", shared),
    ]
    for settings, entries in own.items():
        title = settings.__name__.removesuffix("Settings")
        alone = tuple(each for each in entries if each not in shared)
        if alone:
            found.append(Group(title, cleandoc(settings.__doc__ or ""), alone))
    return found


def _fields(section: type[BaseModel], prefix: str) -> Iterator[Entry]:
    for name, field in section.model_fields.items():
        path = f"{prefix}{name}"
        inner, suffix = _section_in(field)
        if inner is not None and not suffix:
            yield from _fields(inner, f"{path}.")
            continue
        of_process = any(name in o.model_fields and issubclass(section, o) for o in _OPTIONS)
        yield Entry(path, _default(field), _describe(field), of_process)
        if inner is not None:
            yield from _fields(inner, f"{path}{suffix}.")


def _section_in(field: FieldInfo) -> tuple[type[BaseModel] | None, str]:
    """The section that a field holds, and how its fields are reached: each, by name, or itself."""
    kind: Any = field.annotation
    suffix = {list: "[]", dict: ".NAME"}.get(get_origin(kind) or kind, "")
    kind = get_args(kind)[-1] if suffix else kind
    return (kind, suffix) if isinstance(kind, type) and issubclass(kind, BaseModel) else (None, "")


def _own(settings: type[BaseSettings]) -> Iterator[Entry]:
    """The settings of a process that no section of the cluster file has."""
    shared = {
        name
        for options in _OPTIONS
        if issubclass(settings, options)
        for name in options.model_fields
    }
    for name, field in settings.model_fields.items():
        if name not in shared:
            yield Entry(name, _default(field), _describe(field))


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return ""
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if value in ([], {}, "[]"):
        return ""
    return value if isinstance(value, str) else json.dumps(value)


def _describe(field: FieldInfo) -> str:
    choices = ""
    if get_origin(field.annotation) is Literal:
        choices = f" One of {', '.join(map(str, get_args(field.annotation)))}."
    return f"{' '.join((field.description or '').split())}{choices}"
