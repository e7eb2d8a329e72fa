"""The compared schedulers for offline requests: Echo's ablation, and Foretell's.

All but the stock scheduler are `CoScheduler` with parts of it replaced, so that they differ only in
policy: in all, online requests come first, step times are learnt from steps, and the requests with
the least computed work are preempted.
"""

from dataclasses import dataclass
from math import inf
from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler

from foretell.cosched import OfflinePool, job_of
from foretell.services.backend.vllm.cosched.scheduler import CoScheduling
from foretell.services.backend.vllm.steps import Instant


@dataclass(frozen=True, slots=True)
class _Fixed:
    """Replaces `cosched.plan.Allowance`: the step may take `longest_s`, whatever its batch."""

    longest_s: float

    def limit_s(self, alone_s: float) -> float:
        return self.longest_s


class _NoReserve:
    """Replaces `BurstReserve`: keeps no blocks free."""

    usual_blocks = 0.0

    def observe(self, blocks: float, now_s: float) -> None: ...

    def blocks(self, held: float) -> float:
        return 0.0


class Ours(CoScheduling, Scheduler):  # type: ignore[misc]
    """Foretell's scheduler class, unchanged."""


class Echo(Ours):
    """BS+E+S+R: a step may take the least slack, by deadlines TTFT + i * TPOT; blocks are kept free
    for bursts. The paper also evicts blocks in its own order."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.planner._allowance = self._by_deadlines

    def _by_deadlines(self, online: list[Any], now: Instant) -> _Fixed:
        least_s = inf
        for request in online:
            targets = job_of(request.sampling_params.extra_args or {}).targets
            due_s = targets.ttft_s + request.num_output_tokens * targets.tpot_s
            least_s = min(least_s, due_s - (now.unix_s - request.arrival_time))
        return _Fixed(least_s)


class EchoUnreserved(Echo):
    """BS+E+S: no blocks are kept free for bursts."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.planner.online.reserve = _NoReserve()


class EchoInOrder(EchoUnreserved):
    """BS+E: also, offline requests are not chosen but run in their order."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.planner.waiting.pool = OfflinePool(most_passed_over=0)
