"""What engines under `foretell check` load: answer lengths known only to them, and a step meter."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")
from foretell.tools.check.engine_args import LENGTH_KEY, METER_FILE, METER_KEY
from foretell.tools.check.in_engine import BLOCK_STEPS, SecretLength, _Metered

pytestmark = pytest.mark.vllm
EOS = 1


class Stub:
    """Stands in for vLLM's scheduler."""

    def __init__(self) -> None:
        self.requests: dict[str, Any] = {}
        self.running: list[Any] = []
        self.foretell: Any = SimpleNamespace(recorder=SimpleNamespace(missed_steps=self.missed))
        self.missed_steps = 0
        self.with_plugin: list[bool] = []

    def missed(self) -> None:
        self.missed_steps += 1

    def add_request(self, request: Any) -> None:
        self.requests[request.request_id] = request

    def schedule(self) -> None:
        self.with_plugin.append(self.foretell is not None)

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        for name, place in model_runner_output.req_id_to_index.items():
            tokens = model_runner_output.sampled_token_ids[place]
            if name in self.requests:
                self.requests[name].output += tokens
        return model_runner_output.sampled_token_ids


class Secret(SecretLength, Stub):
    pass


class Metered(_Metered, Stub):
    pass


class Request(SimpleNamespace):
    @property
    def num_output_tokens(self) -> int:
        return len(self.output)


def request(name: str, eos: int | None = EOS, **xargs: int) -> Request:
    params = SimpleNamespace(extra_args=xargs, eos_token_id=eos)
    return Request(request_id=name, sampling_params=params, output=[])


def sampled(**tokens: list[int]) -> Any:
    places = {name: place for place, name in enumerate(tokens)}
    return SimpleNamespace(req_id_to_index=places, sampled_token_ids=list(tokens.values()))


@pytest.mark.parametrize("step", [1, 3])
def test_an_answer_ends_with_its_token_and_no_earlier(step: int) -> None:
    scheduler = Secret()
    scheduler.add_request(request("a", **{LENGTH_KEY: 7}))
    scheduler.add_request(request("b"))
    while EOS not in scheduler.requests["a"].output:
        scheduler.update_from_output(None, sampled(a=[EOS] * step, b=[5], gone=[6]))
    assert len(scheduler.requests["a"].output) == 7
    assert scheduler.requests["a"].output.index(EOS) == 6
    assert set(scheduler.requests["b"].output) == {5}


def test_a_chunk_of_a_prompt_samples_nothing_and_ends_nothing() -> None:
    scheduler = Secret()
    scheduler.add_request(request("a", **{LENGTH_KEY: 1}))
    scheduler.update_from_output(None, sampled(a=[]))
    assert scheduler.requests["a"].output == []
    scheduler.update_from_output(None, sampled(a=[9]))
    assert scheduler.requests["a"].output == [EOS]


def test_a_request_that_ignores_eos_keeps_what_was_sampled() -> None:
    scheduler = Secret()
    scheduler.add_request(request("a", eos=None, **{LENGTH_KEY: 1}))
    scheduler.update_from_output(None, sampled(a=[9]))
    assert scheduler.requests["a"].output == [9]


def test_blocks_of_steps_go_with_the_plugin_and_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "meter.json"
    monkeypatch.setenv(METER_FILE, str(file))
    scheduler = Metered()
    plugin = scheduler.foretell
    scheduler.schedule()
    scheduler.add_request(request("begin", **{METER_KEY: 1}))
    for _ in range(10 * BLOCK_STEPS):
        scheduler.schedule()
        scheduler.update_from_output(None, sampled())
    scheduler.add_request(request("end", **{METER_KEY: 0}))
    assert scheduler.foretell is plugin
    blocks = json.loads(file.read_text())
    kinds = [block["plugin"] for block in blocks]
    assert all(set(pair) == {True, False} for pair in zip(kinds[::2], kinds[1::2], strict=False))
    assert all(len(b["own_us"]) == len(b["step_us"]) for b in blocks)
    assert sum(len(block["step_us"]) for block in blocks) > 5 * BLOCK_STEPS
    assert scheduler.missed_steps > 2
    assert False in scheduler.with_plugin
    scheduler.schedule()
    assert scheduler.with_plugin[-1]


def test_without_a_file_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(METER_FILE, raising=False)
    scheduler = Metered()
    scheduler.add_request(request("begin", **{METER_KEY: 1}))
    scheduler.schedule()
    scheduler.add_request(request("end", **{METER_KEY: 0}))
    assert all(scheduler.with_plugin)
