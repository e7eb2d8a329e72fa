"""Who the instances of a cluster are: the list that schedulers read and a provisioner writes."""

import json
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

_KEYS = {
    "instance_id": str,
    "url": str,
    "predictor": str,
    "draining": bool,
    "model": str,
    "rank": int,
    "kind": str,
}
KINDS = ("openai", "sglang", "tensorrt-llm", "vllm")
"""What an engine that somebody else starts may be."""


@dataclass(frozen=True, slots=True)
class InstanceConfig:
    """One engine and its sidecar, as configured."""

    instance_id: str
    url: str
    predictor: str = ""
    draining: bool = False
    """It ends what it has and gets nothing new."""
    model: str = ""
    """The model that it will serve, which counts until it says so itself; "": not known."""
    rank: int | None = None
    """The data-parallel rank of the server at `url` that it is; None: the whole server."""
    kind: str = ""
    """One of `KINDS`, where somebody has stated it; "": its model cards say."""


@dataclass(frozen=True, slots=True)
class Members:
    """The instances, and what stays listed while none of them serves it."""

    instances: tuple[InstanceConfig, ...] = ()
    models: tuple[str, ...] = ()
    """Models whose requests wait for an instance that may still be started."""


def parse_members(text: str) -> Members:
    """The list of instances, or an object of `instances` and `models`, in JSON.

    Raises `ValueError` that names what is wrong.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"instances: not valid JSON: {error}") from error
    items, models = found, []
    if isinstance(found, dict) and found.keys() == {"instances", "models"}:
        items, models = found["instances"], found["models"]
    if not isinstance(items, list):
        raise ValueError("instances: must be a JSON list")
    if not isinstance(models, list) or not all(isinstance(name, str) for name in models):
        raise ValueError("instances: models must be a list of names")
    configs = tuple(_parse_instance(item) for item in items)
    if len({c.instance_id for c in configs}) != len(configs):
        raise ValueError("instances: instance_id must be unique")
    return Members(configs, tuple(models))


def members_json(members: Members) -> str:
    """What `parse_members` reads."""
    instances = [
        {
            "instance_id": each.instance_id,
            "url": each.url,
            "predictor": each.predictor,
            "draining": each.draining,
            **({"model": each.model} if each.model else {}),
            **({} if each.rank is None else {"rank": each.rank}),
            **({"kind": each.kind} if each.kind else {}),
        }
        for each in members.instances
    ]
    return json.dumps({"instances": instances, "models": list(members.models)}, indent=1)


def _parse_instance(item: object) -> InstanceConfig:
    if not isinstance(item, dict) or not item.get("instance_id") or not item.get("url"):
        raise ValueError(f"instances: {item!r} needs instance_id and url")
    unknown = set(item) - set(_KEYS)
    if unknown:
        raise ValueError(f"instances: unknown keys {sorted(unknown)}")
    for key, value in item.items():
        if not isinstance(value, _KEYS[key]):
            raise ValueError(f"instances: {key} of {item!r} must be {_KEYS[key].__name__}")
    if item.get("kind", KINDS[0]) not in KINDS:
        raise ValueError(f"instances: kind of {item!r} must be one of {', '.join(KINDS)}")
    if not re.fullmatch(r"[!-~]+", item["instance_id"]):
        raise ValueError(f"instances: instance_id {item['instance_id']!r} is no header value")
    try:
        url = urlsplit(item["url"])
        _ = url.port  # which is parsed when it is asked for
    except ValueError as error:
        raise ValueError(f"instances: url {item['url']!r}: {error}") from error
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ValueError(f"instances: url {item['url']!r} must be http://HOST[:PORT]")
    return InstanceConfig(
        item["instance_id"],
        item["url"].rstrip("/"),
        item.get("predictor", ""),
        item.get("draining", False),
        item.get("model", ""),
        item.get("rank"),
        item.get("kind", ""),
    )
