"""The vLLM plugin: stock scheduling, told to the world after each step.

    vllm serve MODEL --scheduler-cls services.backend.vllm.plugin.ForetellScheduler

with `FORETELL_PLUGIN_SNAPSHOT_ENDPOINT` in the environment. Scheduling is vLLM's own: every hook
calls it first or always, and nothing that goes wrong in here reaches the engine. Where the plugin
cannot attach it says so once and serving continues as stock.
"""

import logging
import uuid
from collections.abc import Callable
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from services.backend.vllm.resume import Resuming

# A child of vLLM's own logger, so that our lines reach its handlers and follow its level.
_log = logging.getLogger("vllm.foretell")

_MAX_FAILURES = 10


class _Guard:
    """Calls the recorder so that no failure of ours reaches the engine."""

    def __init__(self, recorder: Any, publisher: Any, now: Callable[[], Any]) -> None:
        self.recorder = recorder
        self.now = now
        self._publisher = publisher
        self._failures = 0
        self._closed = False

    @property
    def active(self) -> bool:
        return not self._closed

    def call(self, hook: Callable[..., None], *args: Any) -> None:
        if not self.active:
            return
        try:
            hook(*args)
        except Exception:
            # The boundary: whatever is wrong with a snapshot, the engine must not notice.
            self._failures += 1
            if self._failures == 1:
                _log.warning("Foretell: a snapshot failed; serving is unaffected.", exc_info=True)
            if self._failures == _MAX_FAILURES:
                _log.warning(
                    "Foretell: switched off after %d failures; serving continues without "
                    "predictions.",
                    self._failures,
                )
                self.close()

    def close(self) -> None:
        """Stop publishing for good. Never raises; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        try:
            self._publisher.close()
        except Exception:  # at shutdown, or after failures already told
            _log.debug("Foretell: the publisher did not close.", exc_info=True)


def attach(scheduler: Any) -> _Guard | None:
    """Start publishing `scheduler`'s state, if an endpoint is set; None if it cannot be done."""
    try:
        return _attach(scheduler)
    except Exception as error:
        # The boundary: a broken installation or setting must not keep the engine from starting.
        _log.warning(
            "Foretell: not attached (%s: %s); serving continues without predictions.",
            type(error).__name__,
            " ".join(str(error).split()),
        )
        return None


def _attach(scheduler: Any) -> _Guard | None:
    # Imported here because a missing or mismatched dependency must end in `attach`, not in vLLM.
    from foretell.config import PluginSettings  # noqa: PLC0415

    settings = PluginSettings()
    if not settings.snapshot_endpoint:
        _log.info("Foretell: FORETELL_PLUGIN_SNAPSHOT_ENDPOINT is not set; not publishing.")
        return None
    from services.backend.publisher import SnapshotPublisher  # noqa: PLC0415
    from services.backend.vllm import compat  # noqa: PLC0415
    from services.backend.vllm.snapshot import SnapshotRecorder  # noqa: PLC0415
    from services.backend.vllm.steps import Instant  # noqa: PLC0415

    reason = compat.refusal(scheduler)
    if reason:
        _log.warning(
            "Foretell: not attached to vLLM %s: %s; serving continues without predictions.",
            compat.version(),
            reason,
        )
        return None
    config = compat.engine_config(scheduler)
    if config.approximations:
        _log.warning("Foretell: predictions do not model %s.", ", ".join(config.approximations))
    publisher = SnapshotPublisher(settings.snapshot_endpoint, settings.heartbeat_s)
    recorder = SnapshotRecorder(
        scheduler,
        config,
        compat.waiting_reader(scheduler),
        publisher.send,
        instance_id=settings.instance_id,
        engine_run_id=uuid.uuid4().hex,
    )
    guard = _Guard(recorder, publisher, Instant.now)
    guard.call(recorder.attached)
    _log.info("Foretell: publishing snapshots on %s.", settings.snapshot_endpoint)
    return guard


class Publishing:
    """Mixed in before one of vLLM's schedulers."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.foretell = attach(self)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        guard = self.foretell
        if guard is None or not guard.active:
            return super().schedule(*args, **kwargs)  # type: ignore[misc]
        started = guard.now()
        output = super().schedule(*args, **kwargs)  # type: ignore[misc]
        guard.call(guard.recorder.scheduled, output, started)
        return output

    def update_from_output(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        guard = self.foretell
        if guard is None or not guard.active:
            return super().update_from_output(scheduler_output, *args, **kwargs)  # type: ignore[misc]
        sampled = args[0] if args else kwargs.get("model_runner_output")
        guard.call(guard.recorder.updating, scheduler_output, sampled, guard.now())
        result = super().update_from_output(scheduler_output, *args, **kwargs)  # type: ignore[misc]
        guard.call(guard.recorder.updated)
        return result

    def shutdown(self) -> None:
        super().shutdown()  # type: ignore[misc]
        if self.foretell is not None:
            self.foretell.close()


class ForetellSyncScheduler(Publishing, Resuming, Scheduler):  # type: ignore[misc]
    """Stands in for `Scheduler`."""


class ForetellScheduler(Publishing, Resuming, AsyncScheduler):  # type: ignore[misc]
    """Stands in for the scheduler vLLM itself would choose.

    vLLM takes `AsyncScheduler` only where async scheduling is on (`get_scheduler_cls`), but takes
    a custom class always. Making the same choice here keeps scheduling stock in every setting;
    without it, pipeline parallelism without async scheduling would differ.
    """

    def __new__(cls, vllm_config: Any, *args: Any, **kwargs: Any) -> Any:
        if cls is ForetellScheduler and not vllm_config.scheduler_config.async_scheduling:
            return ForetellSyncScheduler(vllm_config, *args, **kwargs)
        return super().__new__(cls)
