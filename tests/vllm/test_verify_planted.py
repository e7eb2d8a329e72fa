"""`verify-engine` finds a rule that was changed on purpose, and names the feature.

Each case changes one place in the installed vLLM's classes, as an unknown version might.
"""

import ast
import inspect
import os
import re
import sys
import textwrap
from typing import Any, NamedTuple

import pytest

pytestmark = pytest.mark.vllm

verify = pytest.importorskip("foretell.tools.verify.compare", reason="needs vLLM: make test-vllm")
features = pytest.importorskip("foretell.tools.verify.features")

SEEDS = 8
EVERY = int(os.environ.get("FORETELL_PLANTED_EVERY", "1"))
"""Only every n-th case is run, to save time."""

_CORE = "vllm.v1.core"
_SCHEDULER = f"{_CORE}.sched.scheduler.Scheduler"
_MANAGERS = f"{_CORE}.single_type_kv_cache_manager"


class Planted(NamedTuple):
    """A place in the code, what is there, and its replacement."""

    feature: str
    """The first feature, in the order of `FEATURES`, that then differs."""
    where: str
    stands: str
    """A regular expression for the function's text as written by `ast.unparse`."""
    instead: str


CASES = (
    Planted(
        "admission and decoding",
        f"{_SCHEDULER}.schedule",
        r"num_running >= self\.max_num_(\w+)_reqs",  # running in 0.30, active since
        r"num_running > self.max_num_\1_reqs",
    ),
    Planted(
        "admission and decoding",
        f"{_SCHEDULER}.schedule",
        r"request\.num_computed_tokens \+ 2 - request\.num_output_placeholders",
        "request.num_computed_tokens + 1 - request.num_output_placeholders",
    ),
    Planted(
        "preemption",
        f"{_SCHEDULER}._preempt_request",
        r"self\.waiting\.prepend_request\(request\)",
        "self.waiting.add_request(request)",
    ),
    Planted(
        "preemption",
        f"{_SCHEDULER}.schedule",
        r"preempted_req = self\.running\.pop\(\)",
        "preempted_req = self.running.pop(0)",
    ),
    Planted(
        "reserve_full_isl off",
        f"{_SCHEDULER}.schedule",
        r"full_sequence_must_fit=self\.scheduler_reserve_full_isl",
        "full_sequence_must_fit=True",
    ),
    Planted(
        "watermark",
        f"{_CORE}.kv_cache_manager.KVCacheManager.allocate_slots",
        r"if has_scheduled_reqs and",
        "if not has_scheduled_reqs and",
    ),
    Planted(
        "priority policy",
        "vllm.v1.request.Request.__lt__",
        r"self\.priority < other\.priority",
        "self.priority > other.priority",
    ),
    Planted(
        "preemption by priority",
        f"{_SCHEDULER}.schedule",
        r"max\(self\.running, key=lambda r: \(r\.priority, r\.arrival_time\)\)",
        "min(self.running, key=lambda r: (r.priority, r.arrival_time))",
    ),
    Planted(
        "token budget",
        f"{_SCHEDULER}.schedule",
        r"token_budget = self\.max_num_scheduled_tokens",
        "token_budget = self.scheduler_config.max_num_batched_tokens",
    ),
    Planted(
        "chunked prefill off",
        f"{_SCHEDULER}.schedule",
        r"not self\.scheduler_config\.enable_chunked_prefill",
        "False",
    ),
    Planted(
        "long_prefill_token_threshold",
        f"{_SCHEDULER}.schedule",
        r"if num_eligible_reqs > 1 else 0",
        "if num_eligible_reqs > 2 else 0",
    ),
    Planted(
        "long_prefill_token_threshold_adaptive",
        f"{_SCHEDULER}.schedule",
        r"input_budget // num_eligible_reqs",
        "input_budget // (1 + num_eligible_reqs)",
    ),
    Planted(
        "prefix caching",
        f"{_CORE}.kv_cache_manager.KVCacheManager.get_computed_blocks",
        r"max_cache_hit_length = request\.num_tokens - 1",
        "max_cache_hit_length = (request.num_tokens - 1) // 2",
    ),
    Planted(
        "prefix caching",
        f"{_CORE}.block_pool.BlockPool.free_blocks",
        r"self\.free_block_queue\.append_n\(blocks_to_evict_last\)",
        "self.free_block_queue.prepend_n(blocks_to_evict_last)",
    ),
    Planted(
        "drafts by n-grams",
        f"{_SCHEDULER}.update_from_output",
        r"request\.num_computed_tokens -= num_rejected",
        "request.num_computed_tokens -= max(0, num_rejected - 1)",
    ),
    Planted(
        "drafts by EAGLE",
        f"{_SCHEDULER}.schedule",
        r"num_lookahead_tokens=self\.num_lookahead_tokens",
        "num_lookahead_tokens=0",
    ),
    Planted(
        "prefix caching, drafts by EAGLE",
        f"{_MANAGERS}.FullAttentionManager.find_longest_cache_hit",
        r"if drop_eagle_block and hit_length > 0",
        "if drop_eagle_block and hit_length > 2 * block_size",
    ),
    Planted(
        "LoRA",
        f"{_SCHEDULER}.schedule",
        r"len\(scheduled_loras\) == self\.lora_config\.max_loras",
        "len(scheduled_loras) > self.lora_config.max_loras",
    ),
    Planted(
        "structured output",
        f"{_SCHEDULER}.schedule",
        r"(if not ready_to_schedule:\s+)skip_request\(request_queue\)\s+continue",
        r"\1break",
    ),
    Planted(
        "prefill_schedule_interval",
        f"{_SCHEDULER}.schedule",
        r"throttle_prefills and \(?not self\.prefill_capacity_bound\)?",
        "throttle_prefills",
    ),
    Planted(
        "prefill_schedule_interval, structured output",
        f"{_SCHEDULER}.schedule",
        r"num_waiting > len\(self\.deferred_waiting\)",
        "num_waiting > 0",
    ),
    Planted(
        "images",
        f"{_CORE}.encoder_cache_manager.EncoderCacheManager.can_allocate",
        r"if num_embeds > encoder_compute_budget",
        "if num_embeds >= encoder_compute_budget",
    ),
    Planted(
        "images in whole chunks",
        f"{_SCHEDULER}._try_schedule_encoder_inputs",
        r"self\.scheduler_config\.disable_chunked_mm_input",
        "False",
    ),
    Planted(
        "images, drafts by EAGLE",
        f"{_SCHEDULER}.schedule",
        r"shift_computed_tokens=self\.num_prefill_lookahead",
        "shift_computed_tokens=0",
    ),
    Planted(
        "sliding window",
        f"{_MANAGERS}.SlidingWindowManager.get_num_skipped_tokens",
        r"num_computed_tokens - self\.sliding_window \+ 1",
        "num_computed_tokens - 2 * self.sliding_window + 1",
    ),
    Planted(
        "chunked attention",
        f"{_MANAGERS}.ChunkedLocalAttentionManager.get_num_skipped_tokens",
        r"num_computed_tokens // self\.attention_chunk_size",
        "max(0, num_computed_tokens - 1) // self.attention_chunk_size",
    ),
)


def _plant(case: Planted, monkeypatch: pytest.MonkeyPatch) -> None:
    verify.as_installed({"config": {}})  # reads the source, which a changed function no longer has
    path, name = case.where.rsplit(".", 1)
    module, owner_name = path.rsplit(".", 1)
    owner: Any = getattr(sys.modules[module], owner_name)
    source = textwrap.dedent(inspect.getsource(getattr(owner, name)))
    changed, count = re.subn(case.stands, case.instead, ast.unparse(ast.parse(source)))
    assert count, f"{case.stands} stands nowhere in {case.where}"
    made: dict[str, Any] = {}
    exec(changed, sys.modules[module].__dict__, made)  # noqa: S102 - vLLM's own, changed
    monkeypatch.setattr(owner, name, made[name])


@pytest.mark.parametrize("case", CASES[::EVERY], ids=lambda case: case.feature)
def test_a_rule_planted_wrong_is_found(case: Planted, monkeypatch: pytest.MonkeyPatch) -> None:
    _plant(case, monkeypatch)
    for feature in features.FEATURES:
        found = verify.compare(feature, range(SEEDS))
        if found.verdict == "different":
            break
    assert found.name == case.feature, found


def test_each_feature_is_equal_in_this_version() -> None:
    verdicts = {each.name: verify.compare(each, range(2)).verdict for each in features.FEATURES}
    assert "different" not in verdicts.values(), verdicts
