"""The engine that a GPU profile stands for."""

from dataclasses import replace

import pytest

from foretell.config import load_profile

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
