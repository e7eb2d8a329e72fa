"""Who the instances of a cluster are: the list that schedulers read and a provisioner writes."""

import json
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError

from foretell.config.marks import plain


def _http(url: str) -> str:
    parts = urlsplit(url)
    _ = parts.port  # which is parsed when it is asked for
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be http://HOST[:PORT]")
    return url.rstrip("/")


@dataclass(frozen=True, slots=True)
class InstanceConfig:
    """One engine and its sidecar, as configured."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)

    instance_id: Annotated[str, Field(pattern="^[!-~]+$")]
    """It is a value of HTTP headers."""
    url: Annotated[str, AfterValidator(_http)]
    predictor: str = ""
    draining: bool = False
    """It ends what it has and gets nothing new."""
    model: str = ""
    """The model that it will serve, which counts until it says so itself; "": not known."""
    rank: int | None = None
    """The data-parallel rank of the server at `url` that it is; None: the whole server."""
    kind: Literal["", "openai", "sglang", "tensorrt-llm", "vllm"] = ""
    """What an engine is that somebody else starts; "": its model cards say."""


@dataclass(frozen=True, slots=True)
class Members:
    """The instances, and what stays listed while none of them serves it."""

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
    """What `parse_members` reads."""
    instances = _members().dump_python(members, exclude_defaults=True).get("instances", ())
    return json.dumps({"instances": instances, "models": members.models}, indent=1)
