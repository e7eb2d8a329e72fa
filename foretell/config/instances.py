"""The list of a cluster's instances, which schedulers read and a provisioner writes."""

import json
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError

from foretell.config.marks import plain


def _http(url: str) -> str:
    parts = urlsplit(url)
    _ = parts.port  # raises ValueError if it is invalid
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be http://HOST[:PORT]")
    return url.rstrip("/")


@dataclass(frozen=True, slots=True)
class InstanceConfig:
    """One engine and its sidecar, as configured."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)

    instance_id: Annotated[str, Field(pattern="^[!-~]+$")]
    """Printable ASCII, because HTTP headers contain it."""
    url: Annotated[str, AfterValidator(_http)]
    predictor: str = ""
    draining: bool = False
    """Whether it finishes its requests and gets no new ones."""
    model: str = ""
    """The model that it will serve, used until it reports one itself; "": not known."""
    rank: int | None = None
    """Its data-parallel rank in the server at `url`; None: it is the whole server."""
    kind: Literal["", "openai", "sglang", "tensorrt-llm", "vllm"] = ""
    """The kind of an engine that is not started with the cluster; "": its model cards say."""


@dataclass(frozen=True, slots=True)
class Members:
    """The instances, and the models that stay listed while no instance serves them."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    instances: tuple[InstanceConfig, ...] = ()
    models: tuple[str, ...] = ()
    """Models whose requests wait for an instance that may still be started."""


@cache
def _members() -> TypeAdapter[Members]:
    return TypeAdapter(Members)


def parse_members(text: str) -> Members:
    """The list of instances, or an object of `instances` and `models`, in JSON.

    Raises `ValueError` that names what is wrong.
    """
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"instances: not valid JSON: {error}") from error
    if not found and found != []:
        raise ValueError("instances: must be a JSON list")
    try:
        listed = isinstance(found, list)
        members = _members().validate_json(f'{{"instances": {text}}}' if listed else text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        what = f"{where}: {plain(first['msg'])}: {first['input']!r}"
        raise ValueError(f"instances: {what.removeprefix('instances.')}") from error
    if len({each.instance_id for each in members.instances}) != len(members.instances):
        raise ValueError("instances: instance_id must be unique")
    return members


def members_json(members: Members) -> str:
    """The JSON that `parse_members` reads."""
    instances = _members().dump_python(members, exclude_defaults=True).get("instances", ())
    return json.dumps({"instances": instances, "models": members.models}, indent=1)
