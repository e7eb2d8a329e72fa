"""The limits of an engine that does not publish its configuration."""

import shlex
from dataclasses import dataclass

_FLAGS = {
    "max-num-seqs": "max_num_seqs",
    "max-running-requests": "max_num_seqs",
    "max-batch-size": "max_num_seqs",
    "max-num-batched-tokens": "max_num_batched_tokens",
    "chunked-prefill-size": "max_num_batched_tokens",
    "max-num-tokens": "max_num_batched_tokens",
    "max-model-len": "max_model_len",
    "context-length": "max_model_len",
    "max-seq-len": "max_model_len",
    "block-size": "block_size_tokens",
    "page-size": "block_size_tokens",
    "num-gpu-blocks-override": "total_blocks",
}
"""Flags of vLLM, SGLang and TensorRT-LLM that state limits."""


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """The known limits of an engine; 0: not known."""

    max_num_seqs: int = 0
    max_num_batched_tokens: int = 0
    max_model_len: int = 0
    block_size_tokens: int = 0
    total_blocks: int = 0

    def beside(self, other: "EngineLimits") -> "EngineLimits":
        """These limits, with those that are not known taken from `other`."""
        names = self.__slots__
        return EngineLimits(*(getattr(self, name) or getattr(other, name) for name in names))


NO_LIMITS = EngineLimits()


def limits_of(flags: str) -> EngineLimits:
    """The limits that an engine's flags state; other flags are ignored.

    ValueError for a limit that is not a positive number.
    """
    found: dict[str, int] = {}
    words = shlex.split(flags)
    for word, following in zip(words, [*words[1:], ""], strict=False):
        flag, equals, value = word.partition("=")
        name = _FLAGS.get(flag.lstrip("-").replace("_", "-")) if flag.startswith("--") else None
        if name is None:
            continue
        text = value if equals else following
        if not text.isdecimal() or int(text) < 1:
            raise ValueError(f"{flag} must be a positive number")
        found[name] = int(text)
    return EngineLimits(**found)
