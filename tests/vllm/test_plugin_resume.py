"""A request that brings output tokens is scheduled like one preempted after producing them."""

from typing import Any

import pytest
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from foretell.services.backend.vllm.resume import OUTPUT_IDS, OUTPUT_LENGTHS, Resuming
from foretell.tools.verify.engine_loop import VerifiedLoop
from foretell.tools.verify.installed import engine_config

pytestmark = pytest.mark.vllm

PROMPT = list(range(100, 140))
BROUGHT = list(range(500, 521))


class Sync(Resuming, Scheduler):  # type: ignore[misc]
    pass


class Async(Resuming, AsyncScheduler):  # type: ignore[misc]
    pass


class Watching:
    """What the worker and the API server learn about one request."""

    def __init__(self, loop: VerifiedLoop, request_id: str) -> None:
        self.scheduler: Any = loop.scheduler
        self.request_id = request_id
        self.new: list[Any] = []
        self.resumed_outputs: list[int] = []
        self.told: list[int] = []
        self.reasons: list[Any] = []
        schedule, update = self.scheduler.schedule, self.scheduler.update_from_output

        def watched_schedule() -> Any:
            output = schedule()
            self.new += [new for new in output.scheduled_new_reqs if new.req_id == request_id]
            cached = output.scheduled_cached_reqs
            for index, each in enumerate(cached.req_ids):
                if each == request_id and each in cached.resumed_req_ids:
                    self.resumed_outputs.append(cached.num_output_tokens[index])
            return output

        def watched_update(*args: Any) -> Any:
            result = update(*args)
            for outputs in result.values():
                for output in outputs.outputs:
                    if output.request_id == request_id:
                        self.told += output.new_token_ids
                        self.reasons.append(output.finish_reason)
            return result

        self.scheduler.schedule = watched_schedule
        self.scheduler.update_from_output = watched_update


def loop_of(*, is_async: bool, **changes: Any) -> VerifiedLoop:
    config = engine_config(async_scheduling=is_async, enable_prefix_caching=True, **changes)
    return VerifiedLoop(config, Async if is_async else Sync)


def add(loop: VerifiedLoop, name: str, max_tokens: int = 60, **more: Any) -> Any:
    return loop.add(name, PROMPT, max_tokens, extra_args={OUTPUT_IDS: BROUGHT}, **more)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("cached", [False, True])
def test_limits_count_what_it_brings_and_all_of_it_is_told(is_async: bool, cached: bool) -> None:
    loop = loop_of(is_async=is_async)
    if cached:  # more than the prompt is cached
        loop.add("before", [*PROMPT, *BROUGHT, 7], 20)
        loop.run()
    seen, request = Watching(loop, "r"), add(loop, "r")
    loop.run()
    assert [new.prompt_token_ids for new in seen.new] == [[*PROMPT, *BROUGHT]]
    assert seen.told[: len(BROUGHT)] == BROUGHT
    assert len(seen.told) == 60
    assert list(request.output_token_ids) == seen.told
    assert [reason for reason in seen.reasons if reason is not None]
    loop.close()


@pytest.mark.parametrize("is_async", [False, True])
def test_preempted_later_it_is_the_same_to_its_worker(is_async: bool) -> None:
    """The worker has the brought tokens as part of the prompt; it must not get them twice."""
    loop = loop_of(is_async=is_async, total_blocks=16)
    loop.add("first", 100, 120)
    loop.step()
    seen = Watching(loop, "r")
    add(loop, "r", 150)
    loop.run()
    assert len(seen.told) == 150
    assert seen.resumed_outputs, "it was never preempted"
    assert all(0 <= outputs <= 150 - len(BROUGHT) for outputs in seen.resumed_outputs)
    loop.close()


@pytest.mark.parametrize("ids", [[], ["x"], [True], [-1], [32_000], "1,2", list(range(60)), 7])
def test_what_is_no_output_is_ignored(ids: object) -> None:
    loop = loop_of(is_async=True)
    seen = Watching(loop, "r")
    loop.add("r", PROMPT, 60, extra_args={OUTPUT_IDS: ids})
    loop.run()
    assert seen.new[0].prompt_token_ids == PROMPT
    assert len(seen.told) == 60
    loop.close()


@pytest.mark.parametrize(
    ("name", "lengths", "brought"),
    [
        ("0_r", [5, 16], BROUGHT[:5]),
        ("1_r", [5, 16], BROUGHT[5:]),
        ("0_r", [0, 21], []),
        ("2_r", [5, 16], []),
        ("r", [5, 16], []),
        ("0_r", [-1, 22], []),
        ("0_r", "5", []),
    ],
)
def test_each_of_several_choices_has_its_own(
    name: str, lengths: object, brought: list[int]
) -> None:
    loop = loop_of(is_async=True)
    seen = Watching(loop, name)
    loop.add(name, PROMPT, 60, extra_args={OUTPUT_IDS: BROUGHT, OUTPUT_LENGTHS: lengths})
    loop.run()
    assert [new.prompt_token_ids for new in seen.new] == [[*PROMPT, *brought]]
    assert len(seen.told) == 60
    loop.close()


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("steps", [0, 1, 2])
def test_one_that_is_aborted_leaves_nothing(is_async: bool, steps: int) -> None:
    loop = loop_of(is_async=is_async)
    add(loop, "r")
    for _ in range(steps):
        loop.step()
    loop.abort("r")
    loop.add("other", 40, 20)
    loop.run()
    scheduler: Any = loop.scheduler
    assert [scheduler._brought, scheduler._untold, scheduler._as_prompt] == [{}, {}, {}]
    loop.close()
