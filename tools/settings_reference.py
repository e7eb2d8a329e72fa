"""`foretell settings`: every setting there is; docs/reference.md has them as Markdown."""

import json
from dataclasses import dataclass
from inspect import cleandoc
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings
from rich.console import Console
from rich.table import Table

from foretell.config import ALL_SETTINGS, Cluster, PluginSettings
from foretell.config.sections import Section

_PREAMBLE = """\
Every process reads its part of the cluster file (`--cluster FILE`). A variable in the environment
wins over the file, and a flag, where there is one, over the variable. An empty default is an empty
string.
"""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting, as an operator looks it up."""

    variable: str
    flag: str  # empty where the setting has none
    default: str
    description: str


def settings_of(settings_class: type[BaseSettings]) -> list[Setting]:
    """The settings of one service, in the order of their definition."""
    prefix = settings_class.model_config.get("env_prefix", "")
    has_flags = settings_class is not PluginSettings
    return [
        Setting(
            variable=f"{prefix}{name}".upper(),
            flag=f"--{name.replace('_', '-')}" if has_flags else "",
            default=_default(field.get_default(call_default_factory=True)),
            description=_describe(field),
        )
        for name, field in settings_class.model_fields.items()
    ]


def cluster_markdown() -> str:
    """The fields of a cluster file, one table for the file and one for each of its sections."""
    sections: list[tuple[str, type[BaseModel]]] = [("The file", Cluster)]
    for name, field in Cluster.model_fields.items():
        types = [*get_args(field.annotation), field.annotation]
        sections += [
            (f"`{name}`", found)
            for found in types
            if isinstance(found, type) and issubclass(found, Section)
        ]
    parts = []
    for title, section in sections:
        lines = [f"### {title}\n", f"{cleandoc(section.__doc__ or '')}\n"]
        lines += ["| field | default | meaning |", "|---|---|---|"]
        for name, field in section.model_fields.items():
            simple = field.default_factory is None and not field.is_required()
            default = _default(field.default) if simple else ""
            meaning = _describe(field).replace("|", chr(92) + "|")
            lines.append(f"| `{name}` | {f'`{default}`' if default else ''} | {meaning} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def markdown() -> str:
    """The tables of docs/reference.md, one for each service."""
    sections = [_PREAMBLE]
    for settings_class in ALL_SETTINGS:
        lines = [
            f"### {_title(settings_class)}\n",
            f"{settings_class.__doc__}\n",
            "| variable | flag | default | meaning |",
            "|---|---|---|---|",
        ]
        for setting in settings_of(settings_class):
            cells = (setting.variable, setting.flag, setting.default)
            coded = " | ".join(f"`{cell}`" if cell else "" for cell in cells)
            lines.append(f"| {coded} | {setting.description.replace('|', chr(92) + '|')} |")
        sections.append("\n".join(lines) + "\n")
    return "\n".join(sections)


def show() -> None:
    """Print one table per service."""
    console = Console()
    for settings_class in ALL_SETTINGS:
        title = f"{_title(settings_class)}: {settings_class.__doc__}"
        table = Table("variable", "flag", "default", "meaning", title=title, title_justify="left")
        for setting in settings_of(settings_class):
            table.add_row(setting.variable, setting.flag, setting.default, setting.description)
        console.print(table)


def _title(settings_class: type[BaseSettings]) -> str:
    return settings_class.__name__.removesuffix("Settings")


def _default(value: Any) -> str:
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    return value if isinstance(value, str) else json.dumps(value)


def _describe(field: FieldInfo) -> str:
    choices = ""
    if get_origin(field.annotation) is Literal:
        choices = f" One of {', '.join(map(str, get_args(field.annotation)))}."
    return f"{field.description}{choices}"
