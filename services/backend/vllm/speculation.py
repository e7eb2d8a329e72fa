"""The speculative decoding of an engine: what the twin models, and counts of draft tokens."""

from collections.abc import Mapping, Sequence
from typing import Any

from foretell.model import MOST_DRAFT_TOKENS

_MOST_COUNTED = 8192  # requests in steps; above it all counts are halved, so that old ones fade
_FULL = {"FullAttentionSpec", "MLAAttentionSpec"}


def not_modelled(scheduler: Any) -> list[str]:
    """What the twin does not model of this engine's speculative decoding."""
    config = scheduler.vllm_config.speculative_config
    if not config:
        return []
    specs = scheduler.kv_cache_config.kv_cache_groups
    full = all(type(each.kv_cache_spec).__name__ in _FULL for each in specs)
    is_modelled = (
        0 < scheduler.num_spec_tokens <= MOST_DRAFT_TOKENS
        and scheduler.dynamic_sd_lookup is None
        and scheduler.num_prefill_lookahead <= 1
        and config.max_num_new_slots_for_drafting == 0
        and getattr(scheduler, "planner", None) is None
        and full
        and (len(specs) == 1 or not _drops_last_hit(scheduler))
    )
    return [] if is_modelled else ["speculative decoding"]


def described(scheduler: Any) -> dict[str, Any]:
    """The fields of `EngineConfig` about drafts; empty if the twin does not model them."""
    if not scheduler.vllm_config.speculative_config or not_modelled(scheduler):
        return {}
    return {
        "num_speculative_tokens": scheduler.num_spec_tokens,
        "num_lookahead_tokens": scheduler.num_lookahead_tokens,
        "drops_last_hit": _drops_last_hit(scheduler),
        "num_hash_lookahead_tokens": getattr(scheduler, "num_hash_lookahead_tokens", 0),
    }


def _drops_last_hit(scheduler: Any) -> bool:
    return bool(scheduler.use_eagle_block_drop)


class DraftCounts:
    """Counts how many draft tokens are verified, and accepted, in steps of decoding requests."""

    def __init__(self, most: int) -> None:
        """`most`: draft tokens of a request in one step."""
        self._most = most
        self._drafted = [0.0] * (most + 1)  # steps by their number of drafts
        self._accepted = [0.0] * (most + 1)
        self._steps = 0.0

    def count(self, output: Any, sampled: Any, requests: Mapping[str, Any]) -> None:
        """Count the step `output`, which has sampled `sampled` (vLLM's `ModelRunnerOutput`)."""
        drafts, most, tokens = output.scheduled_spec_decode_tokens, self._most, 0
        for request_id, ids in zip(sampled.req_ids, sampled.sampled_token_ids, strict=False):
            request = requests.get(request_id)
            if not ids or request is None or not request.num_output_tokens:
                continue  # a prompt has no drafts
            tokens += 1
            self._drafted[min(most, len(drafts.get(request_id, ())))] += 1
            self._accepted[min(most, len(ids) - 1)] += 1
        self._steps += tokens
        if self._steps > _MOST_COUNTED:
            self._steps /= 2
            self._drafted = [count / 2 for count in self._drafted]
            self._accepted = [count / 2 for count in self._accepted]

    def ratios(self) -> tuple[list[float], list[float]]:
        """The fields `drafted_ratio` and `accepted_ratio` of a snapshot."""
        return self._at_least(self._drafted), self._at_least(self._accepted)

    def _at_least(self, counts: Sequence[float]) -> list[float]:
        if not self._steps:
            return []
        result, left = [], self._steps
        for count in counts[:-1]:
            left -= count
            result.append(max(0.0, left / self._steps))
        return result
