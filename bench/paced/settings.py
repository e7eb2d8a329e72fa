"""The five settings: four engines each, and the rate at which they get requests."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from bench.paced.engines import BLOCK_TOKENS, SLOWDOWN, EngineSpec
from bench.paced.pace import step_time
from bench.paced.requests import Turn
from foretell.latency.linear import StepTimeModel
from foretell.model import BatchShape

UTILISATION = 1.0
"""Ratio of the rate to what full engines could serve: queues form in less than a minute."""
_TARGETS_S = ((1.0, 0.08), (8.0, 0.2), (0.0, 0.0))


def requests_per_s(
    spec: EngineSpec, prompt_tokens: float, output_tokens: float, step_time: StepTimeModel
) -> float:
    """The rate of requests with these mean lengths that an always full engine could serve.

    Full means as many requests of mean size as get a seat and KV blocks. A request costs the time
    that its prompt adds to a step of decodes, and for each token its share of a decode step.
    """
    prompt, output = round(prompt_tokens), output_tokens
    context = round(prompt + output / 2)
    full = max(1, min(spec.seats, spec.blocks // (context // BLOCK_TOKENS + 1)))
    decodes = BatchShape(decode_seqs=full, decode_pairs=full * context)
    beside = BatchShape(1, prompt, prompt * (prompt + 1) // 2, full, full * context)
    decode_s = step_time.step_s(decodes)
    prefill_s = step_time.step_s(beside) - decode_s
    return 1.0 / (spec.slowdown * (prefill_s + output * decode_s / full))


def mean_lengths(turns: Sequence[Turn]) -> tuple[float, float]:
    """Mean tokens of prompts and of answers."""
    return fmean(t.prompt_tokens for t in turns), fmean(t.output_tokens for t in turns)


@dataclass(frozen=True, slots=True)
class Setting:
    """Engines and their requests."""

    name: str
    what: str
    """What is special about it, for the page."""
    engines: tuple[EngineSpec, ...]
    conversations: bool = False
    """Requests are whole conversations; each turn follows some time after the previous answer."""
    targets_s: tuple[tuple[float, float], ...] = ()
    """Targets of TTFT and TPOT in seconds, 0: none; each request draws one of these pairs."""
    utilisation: float = UTILISATION
    hinted: bool = False
    """Requests state the lengths of their answers."""
    own_answers: bool = False
    """Later turns repeat the engines' answers instead of the file's."""

    def rate_per_s(self, turns: Sequence[Turn]) -> float:
        """Requests a second that keep the engines as busy as `utilisation` says."""
        prompt, output = mean_lengths(turns)
        each = (requests_per_s(spec, prompt, output, step_time()) for spec in self.engines)
        return self.utilisation * sum(each)


_ALIKE = (EngineSpec(),) * 4
_HALF_PACE = EngineSpec(slowdown=2 * SLOWDOWN)

SETTINGS = {
    setting.name: setting
    for setting in (
        Setting("alike", "8 seats each: seats are what is short", _ALIKE),
        Setting(
            "memory",
            "24 seats and 27 KV blocks of 128 tokens each: memory is what is short",
            (EngineSpec(seats=24, blocks=27),) * 4,
        ),
        Setting(
            "unlike",
            "8 seats, but two engines at half the pace, and one of the others with 4 seats",
            (EngineSpec(), EngineSpec(seats=4), _HALF_PACE, _HALF_PACE),
        ),
        Setting(
            "turns",
            "8 seats each, conversations turn by turn, with prefix caching",
            _ALIKE,
            conversations=True,
        ),
        Setting(
            "targets",
            "8 seats each; a third of the requests with TTFT and TPOT targets of "
            "1 s and 80 ms, a third with 8 s and 200 ms, the others with none",
            _ALIKE,
            targets_s=_TARGETS_S,
        ),
    )
}
