"""Writes compose files, and files beside them, as YAML."""

from collections.abc import Mapping
from typing import Any

import yaml


class _Dumper(yaml.SafeDumper):
    """Writes no anchors, so that each service can be read by itself, and a line per variable."""

    def ignore_aliases(self, data: object) -> bool:
        return True

    def represent_mapping(
        self, tag: str, mapping: Any, flow_style: bool | None = None
    ) -> yaml.MappingNode:
        short = mapping if isinstance(mapping, Mapping) else {}
        in_lines = any(str(key).isupper() for key in short)
        return super().represent_mapping(tag, mapping, False if in_lines else flow_style)


def dump(content: object) -> str:
    """Dump `content` as YAML."""
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False, width=110, default_flow_style=None)
