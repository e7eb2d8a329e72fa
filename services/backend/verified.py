"""The results of `foretell verify-engine` for an installation of vLLM, kept for the plugin.

One private file holds them. They are stored by vLLM's version, the hash of its scheduler's code
(`vllm/v1/core`) and Foretell's version, so that they apply to exactly this code.
"""

import hashlib
import json
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import foretell
from foretell.model import EngineConfig

_MOST_KEPT = 16
_MOST_BYTES = 1 << 20
_Uses = Callable[[EngineConfig], bool]


def _always(_: EngineConfig) -> bool:
    return True


def _drafts(config: EngineConfig) -> bool:
    return config.num_speculative_tokens > 0


def _has_eagle(config: EngineConfig) -> bool:
    return config.num_lookahead_tokens > 0


def _has_images(config: EngineConfig) -> bool:
    return config.max_num_encoder_input_tokens > 0


def _attends_in(chunks: bool, alone: bool) -> _Uses:
    def uses(config: EngineConfig) -> bool:
        in_chunks = config.attention_chunk_tokens > 0
        is_alone = config.local_kv_cache_groups == config.kv_cache_groups
        return config.attends_locally and (in_chunks, is_alone) == (chunks, alone)

    return uses


USES: Mapping[str, _Uses] = {
    "admission and decoding": _always,
    "aborts": _always,
    "preemption": _always,
    "reserve_full_isl off": lambda config: not config.reserve_full_isl,
    "watermark": lambda config: config.watermark_ratio > 0,
    "priority policy": lambda config: config.policy == "priority",
    "preemption by priority": lambda config: config.policy == "priority",
    "token budget": lambda config: config.max_num_batched_tokens > 0,
    "max_num_active_seqs": lambda config: config.max_num_active_seqs > 0,
    "chunked prefill off": lambda config: not config.enable_chunked_prefill,
    "long_prefill_token_threshold": lambda config: config.long_prefill_token_threshold > 0,
    "long_prefill_token_threshold_adaptive": (
        lambda config: config.long_prefill_token_threshold_adaptive
    ),
    "prefill_schedule_interval": lambda config: config.prefill_schedule_interval > 1,
    "prefill_schedule_interval, short of blocks": (
        lambda config: config.prefill_schedule_interval > 1
    ),
    "prefix caching": lambda config: config.enable_prefix_caching,
    "prefix caching, short of blocks": lambda config: config.enable_prefix_caching,
    "drafts by n-grams": lambda config: _drafts(config) and not _has_eagle(config),
    "drafts by EAGLE": _has_eagle,
    "prefix caching, drafts by EAGLE": (
        lambda config: _has_eagle(config) and config.enable_prefix_caching
    ),
    "LoRA": lambda config: config.max_loras > 0,
    "structured output": _always,
    "prefill_schedule_interval, structured output": (
        lambda config: config.prefill_schedule_interval > 1
    ),
    "images": _has_images,
    "images in whole chunks": (
        lambda config: _has_images(config) and config.disable_chunked_mm_input
    ),
    "images, drafts by EAGLE": lambda config: _has_images(config) and _has_eagle(config),
    "sliding window": _attends_in(chunks=False, alone=True),
    "sliding window beside others": _attends_in(chunks=False, alone=False),
    "chunked attention": _attends_in(chunks=True, alone=True),
    "chunked attention beside others": _attends_in(chunks=True, alone=False),
    "all together": _always,
}
"""The features that are compared, and which engines use them."""


def installation(vllm_folder: Path, version: str) -> str:
    """Return a key that identifies the code of an installation of vLLM and Foretell's version."""
    core, digest = vllm_folder / "v1" / "core", hashlib.sha256()
    for path in sorted(core.rglob("*.py")):
        for part in (str(path.relative_to(core)).encode(), path.read_bytes()):
            digest.update(len(part).to_bytes(8, "big") + part)
    return f"{version} {digest.hexdigest()} {foretell.__version__}"


def kept_in() -> Path:
    """Return the path of this user's file."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "foretell" / "verified-engines.json"


def keep(key: str, verdicts: Mapping[str, str], path: Path) -> None:
    """Store the `verdicts` on an installation, by feature."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    known = {each: found for each, found in _read(path).items() if each != key}
    for oldest in list(known)[: max(0, len(known) + 1 - _MOST_KEPT)]:
        del known[oldest]
    known[key] = dict(verdicts)
    beside = path.with_suffix(f".{os.getpid()}")
    with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(known, file, indent=1)
    beside.replace(path)


def verdicts_of(key: str, path: Path) -> Mapping[str, str] | None:
    """Return the verdicts on an installation, by feature; None if it was not verified."""
    found = _read(path).get(key)
    return found if isinstance(found, dict) else None


def differs(verdicts: Mapping[str, str], config: EngineConfig) -> list[str]:
    """Return the features that this engine uses and that were not found to match the twin."""
    return [
        name
        for name, uses in USES.items()
        if uses(config) and verdicts.get(name) not in {"equal", "approximated"}
    ]


def _read(path: Path) -> dict[str, Any]:
    """The file's content; empty if it is missing, broken, or others may write it."""
    try:
        with path.open() as file:
            about = os.fstat(file.fileno())
            others = stat.S_IWGRP | stat.S_IWOTH
            if about.st_uid != os.geteuid() or about.st_mode & others:
                return {}
            found = json.loads(file.read(_MOST_BYTES))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
