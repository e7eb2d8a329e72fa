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
"""Time constant by which the learned delay is forgotten: an engine that looks slow gets few
requests, and none from which it could be learned that it no longer is."""
EMULATED = "foretell-emulated"
KINDS = {
    "vllm": "vllm",
    EMULATED: "emulated",
    "sglang": "sglang",
    "tensorrt_llm": "tensorrt-llm",
}
"""Kinds of engines by the owner that their model cards name; others speak OpenAI's API."""
ORDER = [KINDS[EMULATED], *(each for each in KINDS.values() if each != "emulated"), "openai"]
"""Of an engine whose cards differ, the first one counts."""
RESTS = {"is_sleeping": "asleep", "is_paused": "paused"}
"""Where an engine says that it rests, and how that is called: vLLM tells of its sleep mode with
`VLLM_SERVER_DEV_MODE`, of pauses where weights are updated online."""


@dataclass(eq=False)
class Instance:
    """One engine as this replica sees it."""

    config: InstanceConfig
    healthy: bool = False
    up_s: float = -inf
    """When a probe last found it up, in `time.monotonic`."""
    is_down: bool = False
    """Probes fail."""
    when_down: set[Callable[[], None]] = field(default_factory=set)
    """Called once they do: what waits for this engine's first byte gives up."""
    cards: dict[str, dict[str, object]] = field(default_factory=dict)
    """What the engine says of its models and LoRA adapters, by their names."""
    model_names: frozenset[str] = frozenset()
    emulated: bool = False
    kind: str = "vllm"
    """What its model cards say that it is: one of `KINDS`, or openai."""
    refuses_fields: bool = False
    """Learned: it has refused a request for them, since it was last seen to start."""
    answer_delay_s: float = 0.0
    """Learned: from the engine's first token to its first byte here."""
    heard_s: Callable[[], float] = lambda: -inf
    """When the last byte of an answer came from it, on the event loop's clock."""
    failures: int = 0
    probes: int = 0
    probing: asyncio.Task[None] | None = None
    rests: dict[str, str] = field(default_factory=RESTS.copy)
    """As `RESTS`, less what the engine does not know."""
    wanted: bool = False
    """It has been asked for while it rests, to be waked."""
    told: bool = False
    """The listener knows it: one that was draining from the beginning gets nothing."""

    @property
    def names(self) -> frozenset[str]:
        """What it serves, as it says; before it has been up, as its configuration says."""
        named = frozenset((self.config.model,)) if self.config.model else frozenset()
        return self.model_names or named

    @property
    def lengths(self) -> dict[str, int]:
        """The longest context of each of its models in tokens, where it says so."""
        told = {name: card.get("max_model_len") for name, card in self.cards.items()}
        return {name: each for name, each in told.items() if type(each) is int}

    @property
    def takes_fields(self) -> bool:
        """Whether requests may have fields that are vLLM's own. Others may refuse what has any."""
        if self.refuses_fields:
            return False
        stated = self.config.kind
        if stated:
            return stated == "vllm"
        return bool(self.config.predictor) or self.kind in {"vllm", "emulated"}

    def judge_fields(self, status: int) -> None:
        """A request that was refused has got this answer when it was repeated without fields."""
        self.refuses_fields = status < 400
        if self.refuses_fields:
            name = self.config.instance_id
            logger.warning("%s refuses fields of vLLM's: its requests stay as they are", name)

    def forget_model(self, name: str) -> None:
        """It says that it does not serve the model: the next probe asks what it serves."""
        self.model_names -= {name}
        self.probes = 0

    def learn_answer_delay(self, sample_s: float) -> None:
        sample_s = min(_LONGEST_ANSWER_DELAY_S, max(0.0, sample_s))
        self.answer_delay_s += _ANSWER_DELAY_WEIGHT * (sample_s - self.answer_delay_s)

    def forget_answer_delay(self, seconds: float) -> None:
        """So much time has passed."""
        self.answer_delay_s *= exp(-seconds / _ANSWER_DELAY_MEMORY_S)
