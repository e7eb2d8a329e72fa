"""An engine's state as the arrays of `foretell.kernel`."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from foretell.kernel.layout import BLOCK, ENGINE, NONE, PLACE, SEQUENCE, Record, State, new_record
from foretell.model import EngineConfig


def new_state(config: EngineConfig, capacity: int, *, knows_content: bool = False) -> State:
    """An idle engine with room for `capacity` sequences, all of its blocks free.

    `knows_content`: blocks have identity, and prefix-cache hits are found by content. Otherwise
    they are only counted.
    """
    row = _engine(config).copy()
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
    )


@lru_cache(maxsize=64)
def _engine(config: EngineConfig) -> Record:
    """Idle, without content. Kept: a predictor makes one for every step of its engine."""
    row = new_record(ENGINE)
    row["block_size"] = config.block_size_tokens
    row["budget"] = config.max_num_scheduled_tokens
    row["max_running"] = config.max_num_active_seqs or config.max_num_seqs
    row["max_model_len"] = config.max_model_len
    row["max_batched"] = config.max_num_batched_tokens or config.max_num_scheduled_tokens
    row["threshold"] = config.long_prefill_token_threshold
    row["threshold_adaptive"] = config.long_prefill_token_threshold_adaptive
    row["threshold_alone"] = config.long_prefill_threshold_when_alone
    row["by_priority"] = config.policy == "priority"
    row["chunked"] = config.enable_chunked_prefill
    # `num_gpu_blocks` includes the null block (KVCacheManager.watermark_blocks).
    row["watermark"] = int(config.watermark_ratio * (config.total_blocks + 1))
    row["reserve_full"] = config.reserve_full_isl
    row["depth"] = steps_in_flight(config)
    row["head"] = row["tail"] = row["blank_head"] = row["lru_head"] = row["lru_tail"] = NONE
    row["free"] = row["owned"] = config.total_blocks
    return row


def new_rows(count: int) -> NDArray[np.void]:
    """Blank sequences."""
    rows = np.zeros(count, SEQUENCE)
    rows["first_token_s"] = rows["finished_s"] = np.inf
    rows["next"] = rows["previous"] = NONE
    return rows


def steps_in_flight(config: EngineConfig) -> int:
    """Steps that the engine has scheduled ahead of their output (`max_concurrent_batches`)."""
    return 2 if config.async_scheduling else 1
