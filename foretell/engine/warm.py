"""Compiles the kernel, or loads it: `python -m foretell.engine.warm` before services start.

The first process after an installation takes tens of seconds, the others a fraction of one.
"""

from foretell.engine.sequence import Sequence
from foretell.engine.snapshot_predictor import SnapshotPredictor
from foretell.engine.twin import Twin
from foretell.latency.calibration import OnlineStepTime
from foretell.length.distribution import knots
from foretell.model import BatchShape, EngineConfig, EngineSnapshot, LengthEstimate, RequestSpec

_CONFIG = EngineConfig("warm", 16, 8, 1, 64, 64)


def warm_twin() -> None:
    """Call everything that `Twin` calls."""
    twin = Twin(_CONFIG)
    for name in "ab":
        twin.add(Sequence(name, 8, 1, 1))
    batch = twin.schedule()
    assert batch is not None
    twin.complete(batch)
    twin.abort("b")
    twin.check()


def warm_forecast() -> None:
    """Call all that a predictor and its calibration call."""
    step_time = OnlineStepTime()
    step_time.observe(BatchShape(decode_seqs=1, decode_pairs=1), 0.01)
    predictor = SnapshotPredictor(dispatch_delay_s=0.0, length_row=knots, prior_tokens=1.0)
    predictor.hear(EngineSnapshot("e", "run", 1, 0.0, 0.0, _CONFIG, 8, (), (), (), ()))
    request = RequestSpec("r", 8, 0, LengthEstimate(1.0))
    predictor.predict(request, step_time.current(), 0.0, externality=True)


if __name__ == "__main__":
    warm_twin()
    warm_forecast()
