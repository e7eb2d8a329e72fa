"""Compiles the kernel, or loads it: `python -m foretell.engine.warm` before services start.

The first process after an installation takes tens of seconds, the others a fraction of one.
"""

import numpy as np

from foretell.engine.gallery import Gallery
from foretell.engine.published import Published
from foretell.engine.sequence import Sequence
from foretell.engine.snapshot_predictor import SnapshotPredictor
from foretell.engine.table import EngineTable
from foretell.engine.twin import Twin
from foretell.latency.calibration import OnlineStepTime
from foretell.latency.linear import LinearStepTime
from foretell.length.adapt import Adapter
from foretell.length.bins import BINS, estimates
from foretell.length.distribution import knots
from foretell.length.layers import forward, standardise, sum_words
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
    """Call all that a predictor and its calibration call, and a scheduler that follows it."""
    step_time = OnlineStepTime()
    step_time.observe(BatchShape(decode_seqs=1, decode_pairs=1), 0.01)
    predictor = SnapshotPredictor(dispatch_delay_s=0.0, length_row=knots, prior_tokens=1.0)
    predictor.hear(EngineSnapshot("e", "run", 1, 0.0, 0.0, _CONFIG, 8, (), (), (), ()))
    request = RequestSpec("r", 8, 0, LengthEstimate(1.0))
    predictor.predict(request, step_time.current(), 0.0, externality=True)
    gallery = Gallery(knots)
    followed = gallery.follow("e")
    followed.hear(Published(0.0, 0.0, predictor.publish(step_time, 0.0)), 0.0)
    followed.reserve(request, 0.0)
    gallery.wait_s("e", request, 0.0)


def warm_rollout() -> None:
    """Call all that running several twins forward together calls."""
    table, twin = EngineTable(1), Twin(_CONFIG)
    twin.add(Sequence("a", 8, 1, 1))
    table.put(0, twin, LinearStepTime((0.01,) * 6).packed())
    table.step(0, 0.0)
    table.run(10.0, each=False)


def warm_lengths() -> None:
    """Call all that length models call."""
    words, layer = np.zeros((1, 1), np.float32), np.zeros((2, 1), np.float32)
    row, last, shares = words.copy(), np.zeros((2, BINS), np.float32), np.empty((1, BINS))
    standardise(row, words[0], words[0], 1.0)
    sum_words(words, np.zeros(1, np.int64), np.ones(1, np.int64), row)
    forward(row, row, np.zeros((3, 1), np.float32), layer, last, np.empty((2, 1)), shares)
    adapter = Adapter()
    adapter.observe("m", shares[0], 10, seen=np.zeros(1))
    estimates(adapter.adjust("m", shares, seen=np.zeros((1, 1))), [(0, 0)], "model")


if __name__ == "__main__":
    warm_twin()
    warm_forecast()
    warm_rollout()
    warm_lengths()
