"""What the plugin publishes about a server's data-parallel ranks."""

from pathlib import Path
from typing import Any

import pytest

from foretell.services.backend.vllm import compat, ranks
from foretell.services.backend.vllm.plugin import ForetellScheduler, attach
from foretell.services.process.memory_log import endpoint_of_rank
from foretell.tools.verify.installed import build_scheduler, engine_config

pytestmark = pytest.mark.vllm


def _scheduler(**of_ranks: Any) -> Any:
    scheduler: Any = build_scheduler(engine_config())
    for name, value in of_ranks.items():
        setattr(scheduler.vllm_config.parallel_config, name, value)
    return scheduler


def test_each_rank_has_an_endpoint_of_its_own() -> None:
    assert ranks.rank(_scheduler()) == 0
    assert ranks.rank(_scheduler(data_parallel_index=2)) == 2
    given = "shm:///run/engine.snapshots"
    assert endpoint_of_rank(given, 2) == f"{given}.rank2"
    assert endpoint_of_rank(given, 0) == given


@pytest.mark.parametrize("way", ["data_parallel_hybrid_lb", "data_parallel_external_lb"])
@pytest.mark.parametrize("is_dense", [True, False])
def test_a_server_with_some_of_all_ranks_counts_its_own(way: str, is_dense: bool) -> None:
    local = int(way == "data_parallel_hybrid_lb")
    scheduler = _scheduler(
        **{way: True},
        data_parallel_index=2 + local,
        data_parallel_rank_local=local,
        elastic_ep_max_dp_size=4,
        data_parallel_size=4,
    )
    if is_dense:
        scheduler.vllm_config.parallel_config.reconfigure_for_independent_dp_rank()
    assert (ranks.rank(scheduler), ranks.ranks(scheduler)) == (local, local + 1)


@pytest.mark.parametrize("known", [1, 2])
def test_ranks_that_nobody_knows_of_are_not_predicted(
    known: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each dense rank of vLLM sees itself as the only one."""
    monkeypatch.setenv("FORETELL_PLUGIN_SNAPSHOT_ENDPOINT", f"shm://{tmp_path}/snapshots")
    monkeypatch.setenv("FORETELL_PLUGIN_RANKS", str(known))
    scheduler: Any = build_scheduler(engine_config(), ForetellScheduler)
    assert scheduler.foretell is not None
    scheduler.shutdown()
    parallel = scheduler.vllm_config.parallel_config
    parallel.elastic_ep_max_dp_size = 2  # as with `--data-parallel-size 2`
    parallel.reconfigure_for_independent_dp_rank()
    assert (parallel.data_parallel_size, ranks.ranks(scheduler)) == (1, 2)
    guard = attach(scheduler)
    assert (guard is not None) == (known == 2)
    (guard or scheduler.foretell_publisher).close()


def test_ranks_with_experts_tell_who_steps_together() -> None:
    scheduler = _scheduler()
    assert compat.engine_config(scheduler).steps_with == ""
    parallel, settings = scheduler.vllm_config.parallel_config, scheduler.scheduler_config
    settings.prefill_schedule_interval = 3
    assert "prefill_schedule_interval" in compat.approximations(scheduler)
    parallel.data_parallel_size = 2
    here = compat.engine_config(scheduler)
    assert here.prefill_schedule_interval == 3
    assert here.approximations == ("a rank's own share of steps",)
    scheduler.vllm_config.instance_id = "another"
    assert compat.engine_config(scheduler).steps_with != here.steps_with
    parallel.data_parallel_master_ip = "10.0.0.1"
    names = set()
    for own in ("another", "one more"):  # two servers of one deployment
        scheduler.vllm_config.instance_id = own
        names.add(compat.engine_config(scheduler).steps_with)
    assert len(names) == 1


def test_the_next_step_is_counted_by_those_that_put_nothing_off() -> None:
    counter = ranks.StepCounter(3)
    told = []
    for puts_off in (False, True, True, False, False, True, True, True):
        counter.called(puts_off)
        told.append(counter.following)
    assert told == [1, 2, 0, 1, 1, 2, 0, 2]
