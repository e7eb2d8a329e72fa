"""What schedulers ask, and what predictors answer."""

from dataclasses import dataclass
from math import inf
from typing import NamedTuple

OFFLINE_PRIORITY = 2**31 - 1
"""The last priority: that of offline requests, and where engines co-schedule of nobody else."""


class LengthEstimate(NamedTuple):
    """An estimate of the number of tokens that a request will generate."""

    expected_tokens: float
    quantiles: tuple[tuple[float, float], ...] = ()
    """(level in (0, 1), tokens), ascending in level; may be empty."""
    source: str = "prior"
    """"hint", "model", "small_model", "history" or "prior"."""


@dataclass(frozen=True, slots=True)
class Slo:
    """Upper bounds that a request's latencies should keep; infinite: no target."""

    ttft_s: float = inf
    tpot_s: float = inf

    @property
    def given(self) -> bool:
        """There is a target."""
        return self.ttft_s < inf or self.tpot_s < inf

    def met(self, ttft_s: float, tpot_s: float) -> bool:
        """Whether an answer with these latencies keeps to it."""
        return ttft_s <= self.ttft_s and tpot_s <= self.tpot_s

    def after(self, waited_s: float) -> "Slo":
        """The targets that remain after a wait; a negative TTFT is one that was missed."""
        return Slo(self.ttft_s - waited_s, self.tpot_s)


NO_SLO = Slo()
"""No targets."""
_MISSED_S = 1e-3


@dataclass(frozen=True, slots=True)
class Turn:
    """Names by which a turn of a conversation finds the prompt before it, with its answer."""

    prompt: int = 0
    """Hash of the whole prompt; 0: it has none."""
    before: int = 0
    """That of the prompt which this one repeats up to its latest answer; 0: there is none."""
    answered_tokens: float = 0.0
    """Tokens of this prompt up to the end of that answer."""


NO_TURN = Turn()
"""A prompt of no conversation."""


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
    """Hashes of the prompt's leading chunks, each with all before it: equal hashes, equal prompts
    up to there (`foretell.length.prefix`)."""
    prefix_chunk_tokens: float = 0.0
    """Tokens in each of these chunks; a mean where chunks are cut by bytes of text."""
    turn: Turn = NO_TURN
    slo: Slo = NO_SLO
    """Targets that count from now."""
    x_request_id: str = ""
    """By which its client knows it: for lines of logs."""

    @property
    def ttft_target_s(self) -> float:
        """The TTFT target as engines get it: 0 where there is none, above 0 where it is
        missed already."""
        return 0.0 if self.slo.ttft_s == inf else max(self.slo.ttft_s, _MISSED_S)

    @property
    def tpot_target_s(self) -> float:
        """The TPOT target in the same way."""
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
    """It admits by priority; otherwise, in the order of arrival."""
    offline_blocks: int = 0
    """Those of the used ones that offline requests of an engine that co-schedules hold."""

    @property
    def requests(self) -> int:
        """All requests that are there or on their way."""
        return self.running + self.waiting + self.reserved

    def with_more(self, requests: int) -> "Load":
        """With so many requests more on their way. If below zero, so many have left: first those on
        their way, then those who wait, then those who run."""
        if requests == 0:
            return self
        if requests > 0:
            return self._replace(reserved=self.reserved + requests)
        reserved = max(0, self.reserved + requests)
        waiting = max(0, min(self.waiting, self.waiting + self.reserved + requests))
        running = max(0, min(self.running, self.requests + requests))
        return self._replace(running=running, waiting=waiting, reserved=reserved)


class Prediction(NamedTuple):
    """One instance's future with the request placed on it; seconds from now.

    Latencies are means over what output lengths may turn out to be; infinite: it could never run.
    """

    instance_id: str
    ttft_s: float
    e2e_s: float
    tpot_s: float
    preempted_s: float
    """The part of `e2e_s - ttft_s` in which the request is preempted, or computed again."""
    snapshot_age_s: float
    load: Load
    calibration_steps: int = 0
    ttft_quantiles: tuple[tuple[float, float], ...] = ()
    """(level in (0, 1), seconds), ascending in level."""
    e2e_quantiles: tuple[tuple[float, float], ...] = ()
    added_ttft_s: float | None = None
    """Seconds by which this request delays the first tokens of others on the instance, summed over
    those that have none yet; mean. Offline ones count for an offline request alone. None: nobody
    asked."""
    added_e2e_s: float | None = None
    """Seconds by which it delays the last tokens of all others there, summed; mean."""
    cached_tokens: int = 0
    """Tokens of the request's prompt that the prefix cache is expected to hold."""
    approximations: tuple[str, ...] = ()
    """What the engine does that the twin does not model."""
