"""The vLLM plugin: stock scheduling, with a snapshot published at each step.

    vllm serve MODEL --scheduler-cls foretell.services.backend.vllm.plugin.ForetellScheduler

with `FORETELL_PLUGIN_SNAPSHOT_ENDPOINT` in the environment. Scheduling is vLLM's own: every hook
always calls it, and no failure in here reaches the engine. If the plugin cannot attach, it logs
that once, and vLLM serves as it would without it.
"""

import logging
import os
import threading
import uuid
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from foretell.services.backend.vllm.resume import Resuming

if TYPE_CHECKING:
    from foretell.model import EngineConfig

# A child of vLLM's own logger, so that lines reach its handlers and follow its level.
_log = logging.getLogger("vllm.foretell")

_MAX_FAILURES = 10
REPORTED_WITHIN_S = 0.05
"""`EngineConfig.reported_within_s`. Publishing a step costs more than all else the plugin does, so
a thread does it while the engine waits for a GPU."""


class _Guard:
    """Keeps every failure of the recorder from the engine."""

    def __init__(self, recorder: Any, publisher: Any) -> None:
        self.recorder = recorder
        self.active = True
        self._publisher = publisher
        self._failures = 0
        self._closed = threading.Event()
        self._teller: threading.Thread | None = None

    def tell_late(self, every_s: float) -> None:
        """Start a thread that publishes what the recorder notes down."""

        def tell() -> None:
            while not self._closed.wait(every_s):
                try:
                    self.recorder.tell_late()
                except Exception:
                    self.failed()

        self._teller = threading.Thread(target=tell, name="foretell-teller", daemon=True)
        self._teller.start()

    def failed(self) -> None:
        """Note that a hook has raised the exception that is being handled."""
        self._failures += 1
        if self._failures == 1:
            _log.warning("Foretell: a snapshot failed; serving is unaffected.", exc_info=True)
        if self._failures == _MAX_FAILURES:
            _log.warning(
                "Foretell: switched off after %d failures; serving continues without predictions.",
                self._failures,
            )
            self.close()

    def close(self) -> None:
        """Stop publishing for good. Never raises; a second call does nothing."""
        if not self.active:
            return
        self.active = False
        self._closed.set()
        try:
            if self._teller and self._teller is not threading.current_thread():
                self._teller.join()
            self._publisher.close()
        except Exception:  # at shutdown, or after failures that were logged
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
    from foretell.config.variables import misspelt  # noqa: PLC0415

    if wrong := list(misspelt(PluginSettings, os.environ)):
        raise ValueError("; ".join(wrong))
    settings = PluginSettings()
    if not settings.snapshot_endpoint:
        _log.info("Foretell: FORETELL_PLUGIN_SNAPSHOT_ENDPOINT is not set; not publishing.")
        return None
    from foretell.services.backend.publisher import SnapshotPublisher  # noqa: PLC0415
    from foretell.services.backend.vllm import compat, ranks  # noqa: PLC0415
    from foretell.services.backend.vllm.snapshot import SnapshotRecorder  # noqa: PLC0415
    from foretell.services.process.memory_log import endpoint_of_rank  # noqa: PLC0415
    from foretell.v1 import snapshot_pb2  # noqa: PLC0415
    from foretell.wire import LONGEST_REASON  # noqa: PLC0415

    reason = compat.refusal(scheduler)
    config = None if reason else _told_late(compat.engine_config(scheduler))
    if config is not None:
        reason = compat.unverified(config)
    if not reason and ranks.ranks(scheduler) > settings.ranks:
        reason = f"data-parallel, {ranks.ranks(scheduler)} ranks: `ranks` must say so"
    endpoint = endpoint_of_rank(settings.snapshot_endpoint, ranks.rank(scheduler))
    publisher = SnapshotPublisher(endpoint)
    if reason or config is None:
        _log.warning(
            "Foretell: not attached to vLLM %s: %s; serving continues without predictions.",
            compat.version(),
            reason,
        )
        # Heartbeats tell readers why there are no predictions, as long as the engine lives.
        publisher.publish(
            snapshot_pb2.EngineSnapshot(
                instance_id=settings.instance_id,
                unpredicted=f"vLLM {compat.version()}: {reason}"[:LONGEST_REASON],
            )
        )
        scheduler.foretell_publisher = publisher
        return None
    if config.approximations:
        _log.warning("Foretell: predictions do not model %s.", ", ".join(config.approximations))
    recorder = SnapshotRecorder(
        scheduler,
        config,
        compat.waiting_reader(scheduler),
        publisher.send,
        instance_id=settings.instance_id,
        engine_run_id=uuid.uuid4().hex,
    )
    guard = _Guard(recorder, publisher)
    try:
        recorder.attached()
        if config.reported_within_s:
            guard.tell_late(config.reported_soon_s)
    except Exception:
        guard.failed()
    _log.info("Foretell: publishing snapshots on %s.", endpoint)
    return guard


def _told_late(config: "EngineConfig") -> "EngineConfig":
    """`config`, with late reporting of steps if a `Reading` holds everything that may change."""
    more_changes = (
        config.co_schedules
        or config.attends_locally
        or config.num_speculative_tokens
        or config.max_num_encoder_input_tokens
        or config.prefill_schedule_interval
    )
    return config if more_changes else replace(config, reported_within_s=REPORTED_WITHIN_S)


class Publishing(Resuming):
    """A mixin, placed before one of vLLM's schedulers.

    The hooks are inlined in the methods, and those of `Resuming` are skipped if it has nothing to
    do: after a step, when the CPU's caches are cold, each function call costs an engine a
    microsecond or two. All exceptions are caught, because no failed snapshot may affect the engine.
    """

    foretell_publisher: Any = None
    """The publisher of an engine that is not described: it repeats the reason."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.foretell = attach(self)

    def add_request(self, *args: Any, **kwargs: Any) -> Any:
        if self.foretell is not None:
            self.foretell.recorder.must_read = True
        return super().add_request(*args, **kwargs)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        guard = self.foretell
        if guard is None or not guard.active:
            return super().schedule(*args, **kwargs)
        if guard.recorder.step_counter is not None:
            puts_off = args[0] if args else kwargs.get("throttle_prefills", False)
            guard.recorder.step_counter.called(puts_off)
        started_s = monotonic()
        if self._brought or self._as_prompt:
            output = super().schedule(*args, **kwargs)
        else:
            output = super(Resuming, self).schedule(*args, **kwargs)  # type: ignore[misc]
        try:
            guard.recorder.scheduled(output, started_s)
        except Exception:
            guard.failed()
        return output

    def update_from_output(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        guard = self.foretell
        if guard is None or not guard.active:
            return super().update_from_output(scheduler_output, *args, **kwargs)
        sampled = args[0] if args else kwargs.get("model_runner_output")
        try:
            guard.recorder.updating((scheduler_output, 0, sampled, monotonic()))
        except Exception:
            guard.failed()
        if self._untold:
            result = super().update_from_output(scheduler_output, *args, **kwargs)
        else:
            stock = super(Resuming, self).update_from_output  # type: ignore[misc]
            result = stock(scheduler_output, *args, **kwargs)
        if not self.running and guard.active:  # type: ignore[attr-defined]
            try:
                guard.recorder.updated()
            except Exception:
                guard.failed()
        return result

    def shutdown(self) -> None:
        super().shutdown()  # type: ignore[misc]
        if self.foretell is not None:
            self.foretell.close()
        if self.foretell_publisher is not None:
            self.foretell_publisher.close()


class ForetellSyncScheduler(Publishing, Scheduler):  # type: ignore[misc]
    """Replaces `Scheduler`."""


class ForetellScheduler(Publishing, AsyncScheduler):  # type: ignore[misc]
    """Replaces the scheduler that vLLM itself would choose.

    vLLM takes `AsyncScheduler` only if async scheduling is on (`get_scheduler_cls`), but takes a
    custom class always. Making the same choice here keeps scheduling stock in every setting;
    without it, pipeline parallelism without async scheduling would differ.
    """

    def __new__(cls, vllm_config: Any, *args: Any, **kwargs: Any) -> Any:
        if cls is ForetellScheduler and not vllm_config.scheduler_config.async_scheduling:
            return ForetellSyncScheduler(vllm_config, *args, **kwargs)
        return super().__new__(cls)
