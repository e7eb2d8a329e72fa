"""Compiles the kernel, or loads it: `python -m foretell.engine.warm` before services start.

The first process after an installation takes tens of seconds, the others a fraction of one.
"""

from foretell.engine.externality import Externality
from foretell.engine.forecast import Forecaster, PendingRequest
from foretell.engine.sequence import Sequence
from foretell.engine.twin import Twin
from foretell.kernel.lengths import WIDTH
from foretell.latency.calibration import OnlineStepTime
from foretell.model import BatchShape, EngineConfig, EngineSnapshot, LengthEstimate, RequestSpec

_CONFIG = EngineConfig("warm", 16, 8, 1, 64, 64)


def warm_twin() -> None:
    """All that `Twin` calls."""
    twin = Twin(_CONFIG)
    for name in "ab":
        twin.add(Sequence(name, 8, 1, 1))
    batch = twin.schedule()
    assert batch is not None
    twin.complete(batch)
    twin.abort("b")
    twin.check()


def warm_forecast() -> None:
    """All that `Forecaster`, `Externality` and the calibration call."""
    snapshot = EngineSnapshot("e", "run", 1, 0.0, 0.0, _CONFIG, 8, (), (), (), ())
    request = RequestSpec("r", 8, 0, LengthEstimate(1.0))
    newcomer = PendingRequest(0.0, request, (1.0,) * (WIDTH - 1) + (0.0,))
    step_time = OnlineStepTime()
    step_time.observe(BatchShape(decode_seqs=1, decode_pairs=1), 0.01)
    forecaster = Forecaster(snapshot, ())
    forecaster.forecast(step_time.current(), newcomer, 0.0, samples=1)
    Externality(forecaster).added(step_time.current(), newcomer, 0.0, samples=1)


if __name__ == "__main__":
    warm_twin()
    warm_forecast()
