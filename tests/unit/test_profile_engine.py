"""The engine configuration of a GPU profile."""

from dataclasses import replace

import pytest

from foretell.config import load_profile
from foretell.latency.profile_json import profile_from_json, profile_to_json

PROFILE = load_profile("A30/Llama-2-7b-hf")


def test_limits_that_are_not_given_are_the_profiles() -> None:
    config = PROFILE.engine(max_num_seqs=7, total_blocks=0, async_scheduling=True)
    assert config.max_num_seqs == 7
    assert config.total_blocks == PROFILE.total_blocks
    assert config.max_num_scheduled_tokens == PROFILE.max_num_batched_tokens
    assert config.max_model_len == PROFILE.max_model_len
    assert config.model_name == PROFILE.name
    assert config.async_scheduling


def test_other_settings_hold_even_where_they_are_false() -> None:
    assert not PROFILE.engine(enable_prefix_caching=False).enable_prefix_caching


def test_an_engine_without_kv_blocks_is_refused() -> None:
    unsized = replace(PROFILE, total_blocks=0)
    with pytest.raises(ValueError, match="how many KV blocks"):
        unsized.engine()
    assert unsized.engine(total_blocks=5).total_blocks == 5


def test_an_engine_has_the_groups_of_its_profile() -> None:
    of_groups = replace(
        PROFILE, kv_cache_groups=2, local_kv_cache_groups=1, sliding_window_tokens=128
    )
    engine = of_groups.engine(max_num_scheduled_tokens=512)
    assert engine.attends_locally
    # 64 blocks of the group with full attention; of the other, those of a window and a step.
    assert engine.blocks_for(1024) == 64 + -(-(127 + 512) // 16) + 1
    assert profile_from_json(profile_to_json(of_groups)) == of_groups
