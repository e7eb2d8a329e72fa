"""Writes the schemas beside it from CustomResourceDefinitions: `extract.py PROVENANCE FILE...`.

Only what validates is kept. Objects that list their properties allow no others.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

import yaml

_KEPT = {
    *("type", "properties", "items", "required", "enum", "pattern", "minimum", "maximum"),
    *("minLength", "maxLength", "minItems", "maxItems", "additionalProperties", "anyOf", "oneOf"),
    *("allOf", "not", "format", "minProperties", "maxProperties"),
}


def _is_ours(pattern: str) -> bool:
    """Whether Python can compile the pattern, which is in Go's syntax."""
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True


def _compact(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_compact(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "containers" in schema.get("properties", {}):
        return {"type": "object"}  # a pod: tests validate it as one
    found = {}
    for key, value in schema.items():
        if key == "properties":
            found[key] = {name: _compact(each) for name, each in value.items()}
        elif key == "pattern" and not _is_ours(value):
            continue
        elif key in _KEPT:
            found[key] = _compact(value)
    open_ended = schema.get("x-kubernetes-preserve-unknown-fields")
    if "type" in found and "properties" in found and not open_ended:
        found.setdefault("additionalProperties", False)
    return found


def main(provenance: str, *paths: str) -> None:
    for path in paths:
        crd = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        names, group = crd["spec"]["names"], crd["spec"]["group"]
        for version in crd["spec"]["versions"]:
            if not version["served"] or version["name"].startswith("v1beta"):
                continue
            schema = _compact(version["schema"]["openAPIV3Schema"])
            schema["properties"].pop("status", None)
            schema["properties"]["metadata"] = {"type": "object"}
            schema["$comment"] = provenance
            name = f"{names['kind']}.{group}.{version['name']}.json"
            text = json.dumps(schema, separators=(",", ":"), sort_keys=True)
            (Path(__file__).parent / name).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
