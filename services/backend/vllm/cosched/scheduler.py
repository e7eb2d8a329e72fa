"""vLLM's scheduler with offline requests beside online ones.

    vllm serve MODEL --scheduler-cls foretell.services.backend.vllm.cosched.scheduler.CoScheduler

A request with `"class": "offline"` in its `vllm_xargs` is offline. Without such requests, each step
is vLLM's own. If this cannot attach, it logs that, and all requests are served as in stock vLLM.
"""

import logging
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from foretell.services.backend.vllm.plugin import Publishing

_log = logging.getLogger("vllm.foretell")


def _attach(scheduler: Any) -> Any:
    """The planner of `scheduler`; None where there cannot be one."""
    try:
        # Imported here because a missing dependency must be handled here, not in vLLM.
        from foretell.services.backend.vllm.cosched.seams import refusal  # noqa: PLC0415
        from foretell.services.backend.vllm.cosched.step import Planner  # noqa: PLC0415

        reason = refusal(scheduler)
        if reason is None:
            return Planner(scheduler)
    except Exception as error:
        # The boundary: a broken installation must not keep the engine from starting.
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
    _log.warning("Foretell: offline requests are served as online ones, because %s.", reason)
    return None


class CoScheduling:
    """A mixin, placed before one of vLLM's schedulers."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.planner = _attach(self)

    def add_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        known = request.request_id in self.requests  # type: ignore[attr-defined]
        if self.planner is not None and not known:
            self.planner.added(request)
        return super().add_request(request, *args, **kwargs)  # type: ignore[misc]

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        planner = self.planner
        if planner is None:
            return super().schedule(*args, **kwargs)  # type: ignore[misc]
        started = planner.now()
        if not planner.plans:
            output = super().schedule(*args, **kwargs)  # type: ignore[misc]
        else:
            planner.guarded(planner.begin, started)
            try:
                output = super().schedule(*args, **kwargs)  # type: ignore[misc]
            finally:
                planner.end()
        planner.guarded(planner.scheduled, output, started)
        return output

    def update_from_output(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        planner = self.planner
        if planner is None:
            return super().update_from_output(scheduler_output, *args, **kwargs)  # type: ignore[misc]
        planner.guarded(planner.updating, scheduler_output, planner.now())
        result = super().update_from_output(scheduler_output, *args, **kwargs)  # type: ignore[misc]
        planner.guarded(planner.updated)
        return result

    def _free_blocks(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        result = super()._free_blocks(request, *args, **kwargs)  # type: ignore[misc]
        if self.planner is not None:
            self.planner.ended(request.request_id)
        return result


class CoSyncScheduler(Publishing, CoScheduling, Scheduler):  # type: ignore[misc]
    """Replaces `Scheduler`."""


class CoScheduler(Publishing, CoScheduling, AsyncScheduler):  # type: ignore[misc]
    """Replaces the scheduler that vLLM itself would choose, as `ForetellScheduler` does."""

    def __new__(cls, vllm_config: Any, *args: Any, **kwargs: Any) -> Any:
        if cls is CoScheduler and not vllm_config.scheduler_config.async_scheduling:
            return CoSyncScheduler(vllm_config, *args, **kwargs)
        return super().__new__(cls)
