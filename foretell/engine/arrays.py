"""An engine's state as the arrays of `foretell.kernel`."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from foretell.kernel.forecasts import KEPT, Costs
from foretell.kernel.layout import (
    BLOCK,
    ENGINE,
    INPUT,
    MARK,
    MOST_DRAFTS,
    NONE,
    PLACE,
    SEQUENCE,
    Record,
    State,
    new_record,
)
from foretell.model import MOST_DRAFT_TOKENS, EngineConfig

assert MOST_DRAFTS == MOST_DRAFT_TOKENS


def new_state(config: EngineConfig, capacity: int, *, knows_content: bool = False) -> State:
    """An idle engine with room for `capacity` sequences and all blocks free.

    With `knows_content`, blocks have identity and prefix-cache hits are found by content. Without,
    blocks are only counted.
    """
    row = engine_record(config).copy()
    row["knows_content"] = knows_content
    blocks = np.zeros(config.total_blocks if knows_content else 0, BLOCK)
    if knows_content:
        blocks["content"] = NONE
        blocks["next"] = np.arange(1, len(blocks) + 1)
        blocks["next"][-1] = NONE
        row["blank_head"], row["unhashed"] = 0, len(blocks)
    return State(
        row,
        new_rows(capacity),
        np.zeros(capacity, np.int32),
        blocks,
        np.zeros(0, PLACE),
        np.zeros(0, np.int32),
        np.zeros(0, INPUT),
    )


@lru_cache(maxsize=64)
def engine_record(config: EngineConfig) -> Record:
    """The record of an idle engine whose blocks have no identity. Read-only: it is shared."""
    row = new_record(ENGINE)
    row["block_size"] = config.block_size_tokens
    row["max_num_scheduled_tokens"] = config.max_num_scheduled_tokens
    row["max_num_seqs"] = config.max_num_active_seqs or config.max_num_seqs
    row["max_model_len"] = config.max_model_len
    batched = config.max_num_batched_tokens or config.max_num_scheduled_tokens
    row["max_num_batched_tokens"] = batched
    for name in (
        "long_prefill_token_threshold",
        "long_prefill_token_threshold_adaptive",
        "long_prefill_threshold_when_alone",
        "enable_chunked_prefill",
        "reserve_full_isl",
    ):
        row[name] = getattr(config, name)
    row["by_priority"] = config.policy == "priority"
    # `num_gpu_blocks` includes the null block (KVCacheManager.watermark_blocks).
    row["watermark_blocks"] = int(config.watermark_ratio * (config.total_blocks + 1))
    row["depth"] = steps_in_flight(config)
    row["groups"] = config.kv_cache_groups
    if config.attends_locally:
        row["local_groups"] = config.local_kv_cache_groups
        row["window"], row["chunk"] = config.sliding_window_tokens, config.attention_chunk_tokens
        row["most_local_blocks"] = config.most_local_blocks
    row["drafts"] = min(config.num_speculative_tokens, MOST_DRAFTS)
    row["lookahead"] = config.num_lookahead_tokens
    row["drops_hit"], row["max_loras"] = config.drops_last_hit, config.max_loras
    for name in ("max_num_encoder_input_tokens", "encoder_cache_size", "disable_chunked_mm_input"):
        row[name] = getattr(config, name)
    row["num_prefill_lookahead"] = config.num_prefill_lookahead_tokens
    row["hash_lookahead"], row["rules"] = config.num_hash_lookahead_tokens, config.rules
    row["prefill_schedule_interval"] = config.prefill_schedule_interval
    row["encoder_free"] = row["encoder_freeable"] = config.encoder_cache_size
    row["encoder_head"] = row["encoder_tail"] = NONE
    row["co_schedules"], row["online_ttft_s"] = config.co_schedules, np.inf
    row["head"] = row["tail"] = row["blank_head"] = row["lru_head"] = row["lru_tail"] = NONE
    row["free"] = row["owned"] = config.total_blocks
    return row


def new_rows(count: int) -> NDArray[np.void]:
    """Rows of blank sequences."""
    rows = np.zeros(count, SEQUENCE)
    rows["first_token_s"] = rows["finished_s"] = np.inf
    rows["next"] = rows["previous"] = NONE
    return rows


def copy_of(row: np.void) -> np.void:
    """A copy of the row. The method `copy` takes ten times as long."""
    rows = np.empty(1, SEQUENCE)
    rows[0] = row
    copied: np.void = rows[0]
    return copied


BLANK: np.void = new_rows(1)[0]
"""The row of a blank sequence. Read-only."""


def steps_in_flight(config: EngineConfig) -> int:
    """The most steps in flight at once (vLLM's `max_concurrent_batches`)."""
    return 2 if config.async_scheduling else 1


def new_costs(engines: int, size: int) -> Costs:
    """Working memory for the cost of new requests, with `size` numbers for each engine."""
    kept = np.zeros(engines, KEPT)
    kept["version"] = -1
    return Costs(
        kept,
        np.empty((2, engines, size)),
        np.empty((2, 1, size)),
        np.empty(0, MARK),
        np.zeros(1, np.int64),
        np.empty((engines, 2)),
    )
