"""The features of vLLM's scheduler, each with scenarios that have little else.

So a rule that differs shows up at its own feature, and not at all of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from foretell.services.backend.verified import USES
from foretell.tools.verify.scenarios import random_scenario

_MOST_REQUESTS = 24
_PLAIN: Mapping[str, Any] = {
    "policy": "fcfs",
    "enable_prefix_caching": False,
    "use_eagle_block_drop": False,
    "num_hash_lookahead_tokens": 0,
    "enable_chunked_prefill": True,
    "long_prefill_token_threshold": 0,
    "long_prefill_token_threshold_adaptive": False,
    "max_num_active_seqs": None,
    "max_num_scheduled_tokens": None,
    "watermark": 0.0,
    "scheduler_reserve_full_isl": True,
    "disable_chunked_mm_input": False,
    "prefill_schedule_interval": 0,
}
_DRAFT_SETTINGS = ("use_eagle_block_drop", "num_hash_lookahead_tokens")
_CACHED = {"enable_prefix_caching": True}
_PRIORITY = {"policy": "priority"}
_PUT_OFF = {"prefill_schedule_interval": 3}


@dataclass(frozen=True)
class Feature:
    """A feature by its name in `USES`, and how its scenarios differ from plain ones."""

    name: str
    kind: str = "full"
    """The kind of scenario (`attention` of `random_scenario`)."""
    sets: Mapping[str, Any] = field(default_factory=dict)
    leaves: tuple[str, ...] = ()
    """Settings that stay as they were drawn."""
    is_short: bool = False
    """Whether KV blocks are scarce."""
    aborts: bool = False

    def scenario(self, seed: int, mode: str) -> dict[str, Any]:
        """A scenario of the replay format."""
        drawn = random_scenario(seed, mode, self.kind)
        if self.name == "all together":
            return drawn
        config = dict(drawn["config"])
        wanted = {**_PLAIN, **self.sets}
        for name, value in wanted.items():
            if name in config and name not in self.leaves:
                config[name] = value
        if not config["enable_chunked_prefill"]:
            config["max_num_batched_tokens"] = config["max_model_len"]
        if config["max_num_active_seqs"]:
            config["max_num_active_seqs"] = max(1, config["max_num_seqs"] // 2)
        if not self.is_short:
            groups = config.get("full_attention_groups", 1) + config.get(
                "local_attention_groups", 0
            )
            blocks = 2 + config["max_model_len"] // config["block_size"]
            config["num_blocks"] = 2 + _MOST_REQUESTS * groups * blocks
        if not self.aborts:
            requests = [request | {"abort_step": None} for request in drawn["requests"]]
            drawn = drawn | {"requests": requests}
        return drawn | {"name": f"{mode} {seed} {self.name}", "config": config}


FEATURES = (
    Feature("admission and decoding"),
    Feature("aborts", aborts=True),
    Feature("preemption", is_short=True),
    Feature("reserve_full_isl off", sets={"scheduler_reserve_full_isl": False}, is_short=True),
    Feature("watermark", sets={"watermark": 0.05}, is_short=True),
    Feature("priority policy", sets=_PRIORITY),
    Feature("preemption by priority", sets=_PRIORITY, is_short=True),
    Feature("token budget", leaves=("max_num_scheduled_tokens",)),
    Feature("max_num_active_seqs", sets={"max_num_active_seqs": 1}),
    Feature("chunked prefill off", sets={"enable_chunked_prefill": False}),
    Feature("long_prefill_token_threshold", sets={"long_prefill_token_threshold": 8}),
    Feature(
        "long_prefill_token_threshold_adaptive",
        sets={
            "long_prefill_token_threshold": 8,
            "long_prefill_token_threshold_adaptive": True,
        },
    ),
    Feature("prefix caching", sets=_CACHED),
    Feature("prefix caching, short of blocks", sets=_CACHED, is_short=True),
    Feature("prefill_schedule_interval", sets=_PUT_OFF),
    Feature("prefill_schedule_interval, short of blocks", sets=_PUT_OFF | _CACHED, is_short=True),
    Feature("drafts by n-grams", "ngram"),
    Feature("drafts by EAGLE", "eagle"),
    Feature("prefix caching, drafts by EAGLE", "eagle", sets=_CACHED, leaves=_DRAFT_SETTINGS),
    Feature("LoRA", "loras"),
    Feature("structured output", "grammars"),
    Feature("prefill_schedule_interval, structured output", "grammars", sets=_PUT_OFF),
    Feature("images", "images"),
    Feature("images in whole chunks", "images", sets={"disable_chunked_mm_input": True}),
    Feature("images, drafts by EAGLE", "images and eagle", leaves=("disable_chunked_mm_input",)),
    Feature("sliding window", "window", sets=_CACHED, is_short=True),
    Feature("sliding window beside others", "full and window", sets=_CACHED, is_short=True),
    Feature("chunked attention", "chunks", sets=_CACHED, is_short=True),
    Feature("chunked attention beside others", "full and chunks", sets=_CACHED, is_short=True),
    Feature("all together", is_short=True, aborts=True),
)
assert {feature.name for feature in FEATURES} == set(USES)
