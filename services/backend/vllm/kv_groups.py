"""The KV cache groups of an engine: what the twin models, and which blocks they have freed."""

from collections.abc import Iterator, Sequence
from typing import Any

from foretell.model import EngineConfig

_FULL = {"FullAttentionSpec", "MLAAttentionSpec"}
_WINDOW = {"SlidingWindowMLASpec", "SlidingWindowSpec"}
_CHUNKS = {"ChunkedLocalAttentionSpec"}
_KNOWN = _FULL | _WINDOW | _CHUNKS
_OTHER = {"MambaSpec": "state-space layers"}


def not_modelled(scheduler: Any) -> list[str]:
    """What the twin does not model of the scheduler's KV cache groups."""
    specs = [spec for group in _groups(scheduler) for spec in group]
    unknown = {_OTHER.get(kind, kind) for kind in map(_kind, specs) if kind not in _KNOWN}
    if unknown:
        return sorted(unknown)
    local = [spec for spec in specs if _kind(spec) not in _FULL]
    sizes = {spec.block_size for spec in specs}
    reasons = {
        "several kinds of local attention": len({_sees(spec) for spec in local}) > 1,
        "KV cache blocks of several sizes": sizes != {scheduler.block_size},
        "chunks of attention that are not whole blocks": any(
            _sees(spec)[1] % spec.block_size for spec in local
        ),
        "windows kept for draft tokens": any(_retained(spec) for spec in local),
        "prefix_cache_retention_interval": bool(local)
        and getattr(scheduler.kv_cache_config, "prefix_cache_retention_interval", None) is not None,
    }
    return [name for name, holds in reasons.items() if holds]


def described(scheduler: Any) -> dict[str, Any]:
    """The fields of `EngineConfig` about the groups; empty if the twin does not model them.

    A layer with local attention in a group of full attention keeps all blocks, as that group does.
    """
    if not_modelled(scheduler):
        return {}
    groups = list(_groups(scheduler))
    local = [group[0] for group in groups if _kind(group[0]) not in _FULL]
    window, chunk = _sees(local[0]) if local else (0, 0)
    return {
        "kv_cache_groups": len(groups),
        "local_kv_cache_groups": len(local),
        "sliding_window_tokens": window,
        "attention_chunk_tokens": chunk,
    }


class LeftBlocks:
    """Counts the leading blocks of requests that groups with local attention have freed."""

    def __init__(self, scheduler: Any) -> None:
        managers = scheduler.kv_cache_manager.coordinator.single_type_managers
        specs = [group[0] for group in _groups(scheduler)]
        local = [
            manager
            for manager, spec in zip(managers, specs, strict=True)
            if _kind(spec) not in _FULL
        ]
        self._blocks = local[0].req_to_blocks  # all of these groups free the same blocks
        self._known: dict[str, int] = {}

    @classmethod
    def of(cls, scheduler: Any, config: EngineConfig) -> "LeftBlocks | None":
        """A new one; None if no group frees blocks before its request ends."""
        return cls(scheduler) if config.attends_locally else None

    def forget(self, request_id: str) -> None:
        """Forget a request that has ended."""
        self._known.pop(request_id, None)

    def count(self, request_ids: Sequence[str]) -> list[int]:
        """How many leading blocks of each of these requests were freed, in their order."""
        return [self._count(request_id) for request_id in request_ids]

    def _count(self, request_id: str) -> int:
        blocks = self._blocks.get(request_id, ())
        left = self._known.get(request_id, 0)
        if left > len(blocks) or (left and not blocks[left - 1].is_null):
            left = 0  # it was preempted since then
        while left < len(blocks) and blocks[left].is_null:
            left += 1
        self._known[request_id] = left
        return left


def _groups(scheduler: Any) -> Iterator[list[Any]]:
    """The specs of each group's layers; those of one group are of one kind."""
    for group in scheduler.kv_cache_config.kv_cache_groups:
        spec = group.kv_cache_spec
        several = _kind(spec) == "UniformTypeKVCacheSpecs"
        yield list(spec.kv_cache_specs.values()) if several else [spec]


def _kind(spec: Any) -> str:
    return type(spec).__name__


def _sees(spec: Any) -> tuple[int, int]:
    """The window and the chunk of local attention; one of them is 0."""
    return (0, spec.attention_chunk_size) if _kind(spec) in _CHUNKS else (spec.sliding_window, 0)


def _retained(spec: Any) -> int:
    return int(getattr(spec, "extra_retained_tokens", 0))
