"""One request inside the twin."""

from typing import Any

import numpy as np

from foretell.engine.arrays import BLANK, copy_of
from foretell.engine.content import Content
from foretell.kernel.layout import ENDED
from foretell.model import EncoderInput


class Sequence:
    """A request as an engine runs it: a view of its row in the twin's arrays.

    Compare sequences by identity: an engine may run several sequences of one request (`n > 1`).
    Counts are tokens unless named otherwise.
    """

    __slots__ = ("content", "inputs", "request_id", "row", "slot")

    def __init__(
        self,
        request_id: str,
        prompt_tokens: int,
        stop_after: int,
        max_tokens: int,
        *,
        arrival_s: float = 0.0,
        priority: int = 0,
        targets_s: tuple[float, float] = (0.0, 0.0),
        adapter: int = 0,
        awaits_grammar: bool = False,
        content: Content | None = None,
        inputs: tuple[EncoderInput, ...] = (),
    ) -> None:
        """`stop_after`: output tokens after which it ends (EOS, `max_tokens` or model length).

        Without `content` it shares no block with other sequences. `targets_s` are its targets for
        TTFT and TPOT, 0 without. `adapter` is the number of its LoRA adapter, 0 without.
        `awaits_grammar` keeps it waiting until `Twin.grammar_compiled`. `inputs` are the multimodal
        inputs of its prompt.
        """
        self.request_id = request_id
        self.content, self.inputs = content, inputs
        self.slot = -1
        self.row: Any = copy_of(BLANK)
        self.row["prompt"] = prompt_tokens
        self.row["stop_after"] = stop_after
        self.row["max_tokens"] = max_tokens
        self.row["arrival_s"] = arrival_s
        self.row["priority"] = priority
        self.row["ttft_target_s"], self.row["tpot_target_s"] = targets_s
        self.row["adapter"], self.row["blocked"] = adapter, awaits_grammar
        self.row["inputs"] = len(inputs)

    @classmethod
    def at(cls, request_id: str, row: np.void, slot: int) -> "Sequence":
        """The sequence that a row of a twin's arrays already describes."""
        seq = object.__new__(cls)
        seq.request_id, seq.content, seq.slot, seq.row = request_id, None, slot, row
        seq.inputs = ()
        return seq

    @property
    def prompt_tokens(self) -> int:
        return int(self.row["prompt"])

    @property
    def output_tokens(self) -> int:
        """The output tokens that are known."""
        return int(self.row["output"])

    @property
    def computed_tokens(self) -> int:
        """KV entries, including those of a scheduled step (vLLM's `num_computed_tokens`)."""
        return int(self.row["computed"])

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens found in the prefix cache at the latest admission."""
        return int(self.row["cached"])

    @property
    def stop_after(self) -> int:
        """Output tokens after which it ends; may be set before it is added to a twin."""
        return int(self.row["stop_after"])

    @stop_after.setter
    def stop_after(self, tokens: int) -> None:
        assert self.slot < 0, "the twin has made room for its length"
        self.row["stop_after"] = tokens

    @property
    def max_tokens(self) -> int:
        return int(self.row["max_tokens"])

    @property
    def arrival_s(self) -> float:
        return float(self.row["arrival_s"])

    @property
    def priority(self) -> int:
        return int(self.row["priority"])

    @property
    def targets_s(self) -> tuple[float, float]:
        """Its targets for TTFT and TPOT; 0 without.

        After the first token the actual TTFT takes the place of its target, as the other tokens are
        due from then on.
        """
        targets = float(self.row["ttft_target_s"]), float(self.row["tpot_target_s"])
        if any(targets) and self.row["first_token_s"] < np.inf:
            return float(self.row["first_token_s"] - self.row["arrival_s"]), targets[1]
        return targets

    @property
    def blocks(self) -> int:
        """The KV blocks that it holds in each KV cache group."""
        return int(self.row["blocks"])

    @property
    def preemptions(self) -> int:
        return int(self.row["preemptions"])

    @property
    def placeholders(self) -> int:
        """Output tokens scheduled to be sampled and not yet known."""
        return int(self.row["placeholders"])

    @property
    def ended(self) -> bool:
        """Whether it has finished or was aborted; a step in flight may still hold it."""
        return bool(self.row["status"] == ENDED)

    def __repr__(self) -> str:
        return f"<Sequence {self.request_id}: {self.prompt_tokens}+{self.output_tokens} tokens>"
