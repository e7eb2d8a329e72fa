"""Every field of a cluster file and every setting of a process."""

import json
from collections import Counter
from collections.abc import Iterator
from inspect import cleandoc
from typing import Any, Literal, NamedTuple, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

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
"""Sections of the cluster file whose fields are also settings of a process, by the same names."""
_SHARED_BY = 4
"""A setting that this many processes describe in the same words is listed once."""
_CLUSTER_FILE = (
    "One YAML file describes a cluster; editors complete it by the JSON Schema that "
    "`foretell render schema` prints. Those marked \\* are settings of their process, too."
)


class Entry(NamedTuple):
    """One field or setting."""

    name: str
    default: str
    meaning: str
    of_process: bool = False
    """Whether it is a field of the cluster file that is also a setting of its process."""


class Group(NamedTuple):
    """A list of the reference."""

    title: str
    text: str
    entries: list[Entry]


def groups() -> list[Group]:
    """The cluster file's fields, the settings that processes share, then each process's own."""
    models: tuple[type[BaseModel], ...] = (Cluster, *ALL_SETTINGS)
    for model in models:
        describe(model)
    own = {
        settings: [
            _entry(name, field)
            for name, field in settings.model_fields.items()
            if not _is_option(settings, name)
        ]
        for settings in ALL_SETTINGS
    }
    counts = Counter(entry for entries in own.values() for entry in entries)
    shared = [entry for entry, count in counts.items() if count >= _SHARED_BY]
    found = [
        Group("Cluster file", _CLUSTER_FILE, list(_fields(Cluster, ""))),
        Group("Processes", "What most processes have.", shared),
    ]
    for settings, entries in own.items():
        if alone := [each for each in entries if each not in shared]:
            title = settings.__name__.removesuffix("Settings")
            found.append(Group(title, cleandoc(settings.__doc__ or ""), alone))
    return found


def _is_option(of: type[BaseModel], name: str) -> bool:
    return any(name in each.model_fields and issubclass(of, each) for each in _OPTIONS)


def _fields(section: type[BaseModel], prefix: str) -> Iterator[Entry]:
    for name, field in section.model_fields.items():
        path = f"{prefix}{name}"
        kind: Any = field.annotation
        # How fields of a nested section are addressed: in a list, by name, or directly.
        suffix = {list: "[]", dict: ".NAME"}.get(get_origin(kind) or kind, "")
        kind = get_args(kind)[-1] if suffix else kind
        is_section = isinstance(kind, type) and issubclass(kind, BaseModel)
        if suffix or not is_section:
            yield _entry(path, field, of_process=_is_option(section, name))
        if is_section:
            yield from _fields(kind, f"{path}{suffix}.")


def _entry(name: str, field: FieldInfo, *, of_process: bool = False) -> Entry:
    value = field.get_default(call_default_factory=True)
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if value is PydanticUndefined or value in ([], {}, "[]"):
        value = ""
    meaning = " ".join((field.description or "").split())
    if get_origin(field.annotation) is Literal:
        meaning += f" One of {', '.join(map(str, get_args(field.annotation)))}."
    default = value if isinstance(value, str) else json.dumps(value)
    return Entry(name, default, meaning, of_process)
