"""An update that escapes the plugin costs one reading of the requests, and nothing later."""

from types import SimpleNamespace
from typing import Any

from foretell.model import BatchShape
from services.backend.vllm.pace import Growth, Pace


def step(pace: Pace, running: list[Any]) -> Any:
    """Schedule one token of each request; the step's output."""
    output = SimpleNamespace(
        num_scheduled_tokens={each.name: 1 for each in running},
        total_num_scheduled_tokens=len(running),
    )
    for each in running:
        each.num_computed_tokens += 1
    if not pace.goes_on(output, running):
        pairs = sum(each.num_computed_tokens for each in running)
        pace.read(output, BatchShape(0, 0, 0, len(running), pairs))
    else:
        pace.began(output)
    return output


def test_a_lost_update_is_noticed_and_left_behind() -> None:
    pace, sampled = Pace(), SimpleNamespace(sampled_token_ids=[[1], [1]])
    running = [SimpleNamespace(name=name, num_computed_tokens=9) for name in "ab"]
    lost, second = step(pace, running), step(pace, running)
    assert pace.growth() is None
    pace.anew()
    pace.updating(second, sampled)  # nobody told of the one before
    assert pace.growth() is None
    pace.anew()
    for number in range(1, 4):
        output = step(pace, running)
        pace.updating(output, sampled)
        assert pace.growth() == Growth(number, number)
    pace.updating(lost, sampled)
    assert pace.growth() is None
