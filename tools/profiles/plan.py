"""What to measure of an endpoint, from what it allows. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, zip_longest

SHORT_CONTEXT = 32
_LEAST_LONG_CONTEXT = 256
_USED_RATIO = 0.8  # of the KV cache, at most: nothing may be preempted
_UNKNOWN_CAPACITY = 8192  # tokens assumed to fit an engine that does not tell
_MOST_CAPACITY = 131_072
_SHARE_OF_TIME = 1 / 20  # of the whole measurement, for the prefill before one decode window
_PROBE_TOKENS = 2048  # left for the stream that counts steps, beside the prompts
_LONGEST_PROMPT = 16_384
_LONE_PROMPT = 512  # fits one step of nearly every engine
_GROUPS = ((8, 16), (4, 64))  # (prompts, their tokens): a step with several chunks
_LONG_DECODES = (1, 4, 16, 64)


@dataclass(frozen=True, slots=True)
class Limits:
    """What an endpoint allows, and how fast it is, roughly."""

    max_model_len: int
    capacity_tokens: int
    """Tokens that fit into the KV cache; 0: not known."""
    max_concurrency: int
    prefill_tokens_per_s: float
    seconds: float
    """Time for the whole measurement."""


@dataclass(frozen=True, slots=True)
class Lone:
    """A prompt by itself, with one token of output."""

    tokens: int

    def __str__(self) -> str:
        return f"a prompt of {self.tokens}"


@dataclass(frozen=True, slots=True)
class Beside:
    """`prompts` prompts at once, over and over, beside a decoding stream."""

    prompts: int
    tokens: int

    def __str__(self) -> str:
        return f"{self.prompts} prompt(s) of {self.tokens} beside a stream"


@dataclass(frozen=True, slots=True)
class Decode:
    """`streams` sequences that decode behind prompts of `context` tokens."""

    streams: int
    context: int

    def __str__(self) -> str:
        return f"{self.streams} stream(s) behind {self.context}"


Experiment = Lone | Beside | Decode


def plan(limits: Limits) -> list[Experiment]:
    """One round; kinds take turns, so that a drift of the machine meets all of them."""
    kinds = (_decodes(limits), _besides(limits), _lones(limits))
    mixed = chain.from_iterable(zip_longest(*kinds))
    return [experiment for experiment in mixed if experiment is not None]


def _lones(limits: Limits) -> Iterator[Experiment]:
    longest = min(_LONE_PROMPT, limits.max_model_len - 1)
    for tokens in (*_powers(1, longest // 2), longest):
        yield Lone(tokens)
        yield Lone(tokens)


def _besides(limits: Limits) -> Iterator[Experiment]:
    longest = min(_room(limits), _LONGEST_PROMPT, _affordable(limits), limits.max_model_len - 1)
    singles = [(1, tokens) for tokens in (*_powers(8, longest // 2), longest)]
    groups = [(n, q) for n, q in _GROUPS if n < limits.max_concurrency and n * q <= longest]
    for prompts, tokens in (*singles, *groups):
        yield Beside(prompts, tokens)


def _decodes(limits: Limits) -> Iterator[Experiment]:
    streams = 1
    while streams <= limits.max_concurrency and streams * 4 * SHORT_CONTEXT <= _room(limits):
        yield Decode(streams, SHORT_CONTEXT)
        streams *= 2
    tokens = min(_room(limits), _affordable(limits))
    for streams in _LONG_DECODES:
        context = min(tokens // streams, limits.max_model_len * 3 // 4)
        if streams <= limits.max_concurrency and context >= _LEAST_LONG_CONTEXT:
            yield Decode(streams, context)


def _room(limits: Limits) -> int:
    """Tokens that requests may hold together, beside the probe."""
    known = min(int(_USED_RATIO * limits.capacity_tokens), _MOST_CAPACITY)
    held = min(_PROBE_TOKENS, limits.max_model_len)
    return max(0, (known or _UNKNOWN_CAPACITY) - held)


def _affordable(limits: Limits) -> int:
    """Prompt tokens whose prefill may precede one window."""
    return int(limits.seconds * _SHARE_OF_TIME * limits.prefill_tokens_per_s)


def _powers(first: int, most: int) -> Iterator[int]:
    while first <= most:
        yield first
        first *= 4
