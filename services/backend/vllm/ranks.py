"""Data-parallel ranks: which one a scheduler belongs to, and how it steps with the others."""

from ipaddress import ip_address
from typing import Any


def rank(scheduler: Any) -> int:
    """Which of its server's data-parallel ranks this is.

    A server that leaves balancing among nodes to others has some of all ranks, or one
    (`--data-parallel-hybrid-lb`, `--data-parallel-external-lb`).
    """
    parallel = scheduler.vllm_config.parallel_config
    if _is_part(parallel):
        return int(parallel.data_parallel_rank_local or 0)
    # Of the rank that was, vLLM leaves a dense model's scheduler only this.
    return int(getattr(parallel, "data_parallel_index", 0) or 0)


def ranks(scheduler: Any) -> int:
    """How many ranks its server has, as far as it says."""
    parallel = scheduler.vllm_config.parallel_config
    # vLLM sets the size of a dense model's to 1 before it builds the scheduler of each.
    at_start = getattr(parallel, "elastic_ep_max_dp_size", None) or 1
    return max(1 if _is_part(parallel) else int(at_start), rank(scheduler) + 1)


def steps_with(scheduler: Any) -> str:
    """`EngineConfig.steps_with`: only ranks of a model with experts still know that they are some.

    They find each other by an address, which is a server's own where it is the loopback's.
    """
    config = scheduler.vllm_config
    parallel = config.parallel_config
    if parallel.data_parallel_size <= 1:
        return ""
    host = str(parallel.data_parallel_master_ip)
    own = "" if _is_part(parallel) or not _is_loopback(host) else f" {config.instance_id}"
    return f"{host}:{parallel.data_parallel_rpc_port}{own}"


def prefill_schedule_interval(scheduler: Any) -> int:
    """`EngineConfig.prefill_schedule_interval`."""
    interval = getattr(scheduler.scheduler_config, "prefill_schedule_interval", 1)
    return interval if interval > 1 and steps_with(scheduler) else 0


class StepCounter:
    """The number of an engine core's next step, by what it tells its scheduler of each: whether
    prompts are put off, which they are not where `interval` divides the number."""

    def __init__(self, interval: int) -> None:
        self.following = 0
        self._interval = interval

    def called(self, puts_off: bool) -> None:
        """`schedule()` is called."""
        number = self.following
        if not puts_off:
            number = 0
        elif number == 0:
            number = 1  # steps went by without requests; how many, is not told
        self.following = (number + 1) % self._interval


def _is_part(parallel: Any) -> bool:
    return bool(getattr(parallel, "local_engines_only", False))


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
