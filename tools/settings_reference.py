"""`foretell settings`: every setting there is; docs/reference.md has them as Markdown."""

import json
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from pydantic import SecretStr
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings
from rich.console import Console
from rich.table import Table

from foretell.config import ALL_SETTINGS, PluginSettings

_PREAMBLE = """\
Every process reads its variables from the environment; a flag, where there is one, wins over the
variable. An empty default is an empty string.
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
