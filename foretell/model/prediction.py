"""Requests as placement sees them, and predictions of what becomes of them."""

from dataclasses import dataclass
from math import inf
from typing import NamedTuple

OFFLINE_PRIORITY = 2**31 - 1
"""The last priority: that of offline requests; in engines that co-schedule, of no others."""


class LengthEstimate(NamedTuple):
    """An estimate of the number of tokens that a request will generate."""

    expected_tokens: float
    quantiles: tuple[tuple[float, float], ...] = ()
    """(level in (0, 1), tokens), ascending in level; may be empty."""
    source: str = "prior"
    """"hint", "model", "small_model", "history" or "prior"."""


@dataclass(frozen=True, slots=True)
class Slo:
    """Latency targets of a request, as upper bounds; infinite: no target."""

    ttft_s: float = inf
    tpot_s: float = inf

    @property
    def given(self) -> bool:
        """Whether there is a target."""
        return self.ttft_s < inf or self.tpot_s < inf

    def met(self, ttft_s: float, tpot_s: float) -> bool:
        """Whether an answer with these latencies meets the targets."""
        return ttft_s <= self.ttft_s and tpot_s <= self.tpot_s

    def after(self, waited_s: float) -> "Slo":
        """The targets that are left after a wait; a negative TTFT target has been missed."""
        return Slo(self.ttft_s - waited_s, self.tpot_s)


NO_SLO = Slo()
"""No targets."""
_MISSED_S = 1e-3


@dataclass(frozen=True, slots=True)
class Turn:
    """Hashes by which a turn of a conversation finds the previous turn and its answer."""

    prompt: int = 0
    """Hash of the whole prompt; 0: it has none."""
    before: int = 0
    """Hash of the previous prompt: this one up to its latest answer; 0: there is none."""
    answered_tokens: float = 0.0
    """Tokens of this prompt up to the end of its latest answer."""


NO_TURN = Turn()
"""The turn of a prompt that belongs to no conversation."""


class RequestSpec(NamedTuple):
    """A request as placement sees it, before any engine has it."""

    request_id: str
    prompt_tokens: int
    max_tokens: int
    """0: limited only by the engine's `max_model_len`."""
    length: LengthEstimate
    priority: int = 0
    sequences: int = 1
    """Prompts times `n`: how many sequences the engine will run for it."""
    cached_tokens: int = 0
    """Prompt tokens that the engine's prefix cache is expected to hold."""
    prefix: tuple[int, ...] = ()
    """Hashes of the prompt's leading chunks, each with all before it: prompts with an equal hash
    are equal up to the end of its chunk (`foretell.length.prefix`)."""
    prefix_chunk_tokens: float = 0.0
    """Tokens in each of these chunks; a mean where chunks are cut by bytes of text."""
    turn: Turn = NO_TURN
    slo: Slo = NO_SLO
    """Targets that count from now."""
    x_request_id: str = ""
    """The id by which its client knows it, for log lines."""

    @property
    def ttft_target_s(self) -> float:
        """The TTFT target as engines get it: 0 for none, so one that is already missed becomes
        `_MISSED_S`."""
        return 0.0 if self.slo.ttft_s == inf else max(self.slo.ttft_s, _MISSED_S)

    @property
    def tpot_target_s(self) -> float:
        """The TPOT target as engines get it, in the same form."""
        return 0.0 if self.slo.tpot_s == inf else max(self.slo.tpot_s, _MISSED_S)


class Load(NamedTuple):
    """An engine's occupancy, reservations included."""

    running: int
    waiting: int
    reserved: int
    used_blocks: int
    total_blocks: int
    waiting_prefill_blocks: int
    """Blocks that the prompts of waiting and reserved requests need."""
    max_num_seqs: int
    by_priority: bool = False
    """Whether it admits requests by priority; otherwise in the order of arrival."""
    offline_blocks: int = 0
    """The used blocks that offline requests hold, in an engine that co-schedules."""

    @property
    def requests(self) -> int:
        """All requests at the engine or on their way to it."""
        return self.running + self.waiting + self.reserved

    def with_more(self, requests: int) -> "Load":
        """The load with `requests` more reserved. A negative number removes requests: first
        reserved, then waiting, then running ones."""
        if requests == 0:
            return self
        if requests > 0:
            return self._replace(reserved=self.reserved + requests)
        reserved = max(0, self.reserved + requests)
        waiting = max(0, min(self.waiting, self.waiting + self.reserved + requests))
        running = max(0, min(self.running, self.requests + requests))
        return self._replace(running=running, waiting=waiting, reserved=reserved)


class Prediction(NamedTuple):
    """What becomes of a request that is placed on one instance; times are seconds from now.

    Latencies are means over the distributions of output lengths; infinite: it could never run.
    """

    instance_id: str
    ttft_s: float
    e2e_s: float
    tpot_s: float
    preempted_s: float
    """The part of `e2e_s - ttft_s` in which the request is preempted or recomputed."""
    snapshot_age_s: float
    load: Load
    calibration_steps: int = 0
    ttft_quantiles: tuple[tuple[float, float], ...] = ()
    """(level in (0, 1), seconds), ascending in level."""
    e2e_quantiles: tuple[tuple[float, float], ...] = ()
    added_ttft_s: float | None = None
    """Seconds by which this request delays the first tokens of others on the instance: the mean of
    the sum over those that have none yet. Offline requests count only if this one is offline, too.
    None: not asked for."""
    added_e2e_s: float | None = None
    """Seconds by which it delays the last tokens of all others there: the mean of the sum."""
    cached_tokens: int = 0
    """Tokens of the request's prompt that the prefix cache is expected to hold."""
    approximations: tuple[str, ...] = ()
    """What the engine does that the twin does not model."""
