"""One engine as a replica sees it."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from math import exp, inf

from foretell.config.instances import InstanceConfig

logger = logging.getLogger(__name__)

_ANSWER_DELAY_WEIGHT = 0.1  # of the newest stream in the learned delay
_LONGEST_ANSWER_DELAY_S = 2.0
_ANSWER_DELAY_MEMORY_S = 30.0
"""Time constant by which the learned delay decays. An engine that looks slow gets few requests, and
without requests nothing would show that it is no longer slow."""
EMULATED = "foretell-emulated"
KINDS = {
    "vllm": "vllm",
    EMULATED: "emulated",
    "sglang": "sglang",
    "tensorrt_llm": "tensorrt-llm",
}
"""Kinds of engines by `owned_by` in their model cards; all others are of the kind `openai`."""
ORDER = [KINDS[EMULATED], *(each for each in KINDS.values() if each != "emulated"), "openai"]
"""If the cards of an engine name several kinds, the first of this list counts."""
RESTS = {"is_sleeping": "asleep", "is_paused": "paused"}
"""Paths at which an engine says whether it rests, and the name of that state. vLLM serves the first
with `VLLM_SERVER_DEV_MODE`, the second where weights are updated online."""


@dataclass(eq=False)
class PoolInstance:
    """One engine as this replica sees it."""

    config: InstanceConfig
    healthy: bool = False
    up_s: float = -inf
    """When a probe last found it up, in `time.monotonic`."""
    is_down: bool = False
    """Probes fail."""
    when_down: set[Callable[[], None]] = field(default_factory=set)
    """Called when it goes down, to give up connections to it."""
    cards: dict[str, dict[str, object]] = field(default_factory=dict)
    """The engine's cards of its models and LoRA adapters, by name."""
    model_names: frozenset[str] = frozenset()
    emulated: bool = False
    kind: str = "vllm"
    """Its kind by its configuration or model cards: one of `KINDS`, or openai."""
    refuses_fields: bool = False
    """Learned: it has refused a request because of vLLM's fields since it last came up."""
    answer_delay_s: float = 0.0
    """Learned: seconds from the engine's first token to the first byte here."""
    heard_s: Callable[[], float] = lambda: -inf
    """Returns when its last byte of an answer came, on the event loop's clock."""
    failures: int = 0
    probes: int = 0
    probing: asyncio.Task[None] | None = None
    rests: dict[str, str] = field(default_factory=RESTS.copy)
    """`RESTS` without the paths that the engine does not know."""
    wanted: bool = False
    """A request asks for its model while it rests: it is to be woken."""
    listener_knows: bool = False
    """The listener was told that it is up. It is not told of one that drains from the start."""

    @property
    def names(self) -> frozenset[str]:
        """The models that it says it serves; until it has been up, the configured one."""
        named = frozenset((self.config.model,)) if self.config.model else frozenset()
        return self.model_names or named

    @property
    def lengths(self) -> dict[str, int]:
        """The longest context of each of its models in tokens, where it says so."""
        lengths = {name: card.get("max_model_len") for name, card in self.cards.items()}
        return {name: each for name, each in lengths.items() if type(each) is int}

    @property
    def takes_fields(self) -> bool:
        """Whether requests may have vLLM's own fields. Other engines may refuse such requests."""
        if self.refuses_fields:
            return False
        stated = self.config.kind
        if stated:
            return stated == "vllm"
        return bool(self.config.predictor) or self.kind in {"vllm", "emulated"}

    def judge_fields(self, status: int) -> None:
        """Learn from the status of a refused request that was repeated without vLLM's fields."""
        self.refuses_fields = status < 400
        if self.refuses_fields:
            name = self.config.instance_id
            logger.warning("%s refuses fields of vLLM's: its requests stay as they are", name)

    def forget_model(self, name: str) -> None:
        """Drop a model that it says it does not serve; the next probe asks for its models."""
        self.model_names -= {name}
        self.probes = 0

    def learn_answer_delay(self, sample_s: float) -> None:
        sample_s = min(_LONGEST_ANSWER_DELAY_S, max(0.0, sample_s))
        self.answer_delay_s += _ANSWER_DELAY_WEIGHT * (sample_s - self.answer_delay_s)

    def forget_answer_delay(self, seconds: float) -> None:
        """Let the learned delay decay for `seconds`."""
        self.answer_delay_s *= exp(-seconds / _ANSWER_DELAY_MEMORY_S)
