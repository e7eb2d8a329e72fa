"""Data-parallel ranks: which one a scheduler belongs to, and how it steps with the others."""

from ipaddress import ip_address
from typing import Any


def rank(scheduler: Any) -> int:
    """The index of this scheduler's rank among the data-parallel ranks of its server.

    A server that leaves balancing among nodes to others has only some of all ranks, or one
    (`--data-parallel-hybrid-lb`, `--data-parallel-external-lb`).
    """
    parallel = scheduler.vllm_config.parallel_config
    if _is_part(parallel):
        return int(parallel.data_parallel_rank_local or 0)
    # For a dense model, vLLM resets the other fields of the rank and leaves only this one.
    return int(getattr(parallel, "data_parallel_index", 0) or 0)


def ranks(scheduler: Any) -> int:
    """How many ranks its server has, as far as its configuration says."""
    parallel = scheduler.vllm_config.parallel_config
    # For a dense model, vLLM sets `data_parallel_size` to 1 before it builds each rank's scheduler.
    at_start = getattr(parallel, "elastic_ep_max_dp_size", None) or 1
    return max(1 if _is_part(parallel) else int(at_start), rank(scheduler) + 1)


def steps_with(scheduler: Any) -> str:
    """`EngineConfig.steps_with`; only ranks of a model with experts know here that there are more.

    It is the address at which ranks meet; to a loopback address the server's id is added.
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
    """Infers the number of an engine core's next step, modulo `interval`. The core tells its
    scheduler only whether a step puts prompts off; it does not if `interval` divides the number."""

    def __init__(self, interval: int) -> None:
        self.following = 0
        self._interval = interval

    def called(self, puts_off: bool) -> None:
        """Note a call of `schedule()`, which puts prompts off or not."""
        number = self.following
        if not puts_off:
            number = 0
        elif number == 0:
            number = 1  # an unknown number of steps went by without requests
        self.following = (number + 1) % self._interval


def _is_part(parallel: Any) -> bool:
    return bool(getattr(parallel, "local_engines_only", False))


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
