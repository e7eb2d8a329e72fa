"""An update that bypasses the plugin costs one reading of the requests, and no later error."""

from types import SimpleNamespace
from typing import Any

import pytest

from foretell.model import BatchShape
from foretell.services.backend.vllm.pace import Growing, Growth, Pace

PROMPT = 8


class Engine:
    """Schedules one token of each running request, and reports it like the recorder."""

    def __init__(self, in_flight: int = 1) -> None:
        self.pace, self.growing = Pace(in_flight=in_flight), Growing()
        self.running = [
            SimpleNamespace(name=name, num_computed_tokens=PROMPT + 1, num_prompt_tokens=PROMPT)
            for name in "ab"
        ]
        self.read: list[bool] = []

    def step(self, *, first: int = 1) -> Any:
        """Make a step in which the `first` request computes this many tokens; return its output."""
        tokens = {each.name: 1 for each in self.running} | {self.running[0].name: first}
        for each in self.running:
            each.num_computed_tokens += tokens[each.name]
        output = SimpleNamespace(
            num_scheduled_tokens=tokens, total_num_scheduled_tokens=sum(tokens.values())
        )
        pairs = self.pace.goes_on(output, self.running)
        self.read.append(not pairs)
        computed = [each.num_computed_tokens for each in self.running]
        if pairs:
            assert pairs == sum(computed)
            self.growing.began(output)
        else:
            running = list(self.running)
            self.pace.read(output, running, [(0, each, 0, 0) for each in computed])
            decodes = len(running) if first == 1 else len(running) - 1
            shape = BatchShape(prefill_seqs=len(running) - decodes, decode_seqs=decodes)
            self.growing.read(output, running, shape)
            self.growing.anew()
        return output


SAMPLED = SimpleNamespace(sampled_token_ids=[[1], [1]])


@pytest.mark.parametrize("in_flight", [1, 2])
def test_requests_are_read_until_only_even_output_is_to_come(in_flight: int) -> None:
    engine = Engine(in_flight)
    for number in range(8):
        engine.step(first=5 if number == 5 else 1)
    settles = [True] * (in_flight + 1)
    assert engine.read[:5] == [*settles, False, False, False][:5]
    assert engine.read[5:] == [*settles, False][:3]


def test_a_lost_update_is_noticed_and_left_behind() -> None:
    engine = Engine(in_flight=2)
    growing = engine.growing
    lost, second = engine.step(), engine.step()
    growing.updating(second, SAMPLED)  # the update before it was lost
    growing.updating(engine.step(), SAMPLED)
    for number in range(1, 4):
        growing.updating(engine.step(), SAMPLED)
        assert growing.growth() == Growth(number, number + 1)
    growing.updating(lost, SAMPLED)
    assert growing.growth() is None


def test_a_request_that_computes_the_last_token_of_its_prompt_does_not_decode() -> None:
    engine = Engine()
    engine.step()
    engine.step()
    engine.running[0].num_prompt_tokens = engine.running[0].num_computed_tokens + 1
    engine.step(first=2)
    assert engine.read == [True, True, True]
