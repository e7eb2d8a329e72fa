"""What a step computes, counted from its scheduled tokens."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from foretell.model import BatchShape

_NO_DRAFTS: Mapping[str, Sequence[int]] = {}


def batch_shape(
    tokens: Mapping[str, int],
    requests: Mapping[str, Any],
    drafts: Mapping[str, Sequence[int]] = _NO_DRAFTS,
) -> BatchShape:
    """The shape of a step that has just been scheduled (its tokens count as computed)."""
    return shape_of(
        (
            count,
            requests[request_id].num_computed_tokens,
            requests[request_id].num_prompt_tokens,
            len(drafts.get(request_id, ())),
        )
        for request_id, count in tokens.items()
    )


def shape_of(rows: Iterable[tuple[int, int, int, int]]) -> BatchShape:
    """The shape of a step from a row for each request that it computes.

    A row has numbers of tokens: scheduled, computed including these, in the prompt, and drafts
    among the scheduled ones. A sequence decodes iff it computes one token, besides its drafts,
    after a fully computed prompt.
    """
    prefill_seqs = prefill_tokens = prefill_pairs = decode_seqs = decode_pairs = drafted = 0
    for scheduled, computed, prompt, drafts in rows:
        drafted += drafts
        count, end = scheduled - drafts, computed - drafts
        if count == 1 and end > prompt:
            decode_seqs += 1
            decode_pairs += end
        else:
            prefill_seqs += 1
            prefill_tokens += count
            prefill_pairs += count * (end - count) + count * (count + 1) // 2
    return BatchShape(
        prefill_seqs, prefill_tokens, prefill_pairs, decode_seqs, decode_pairs, drafted
    )
