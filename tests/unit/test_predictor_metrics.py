"""The sidecar's metrics about its step-time model."""

import random
import time

from prometheus_client import CollectorRegistry

from foretell.latency.calibration import OnlineStepTime
from foretell.model import BatchShape, EngineConfig, EngineSnapshot, Step
from foretell.services.predictor.metrics import SPREAD_STEPS, PredictorMetrics
from foretell.services.predictor.service import PredictorService

CONFIG = EngineConfig("m", 16, 1000, 8, 512, 1024, engine_version="test")


def test_error_spread_and_changes_are_exported() -> None:
    registry, rng, now = CollectorRegistry(), random.Random(1), time.time()
    model = OnlineStepTime()
    service = PredictorService(
        "e0",
        model,
        PredictorMetrics(registry),
        reserve_ttl_s=1.0,
        dispatch_delay_s=0.0,
        prior_output_tokens=100.0,
    )
    for sequence in range(1, 400):
        seconds = rng.uniform(0.9, 1.1) * (0.01 if sequence < 300 else 0.05)
        step = Step(sequence, now, seconds, BatchShape(decode_seqs=2, decode_pairs=300))
        service.hear(
            EngineSnapshot("e0", "run", sequence, now, now, CONFIG, 1000, (), (), (), (step,))
        )
    assert model.steps == 399
    assert registry.get_sample_value("foretell_step_time_error_ratio") == model.relative_error
    changes = registry.get_sample_value("foretell_step_time_changes_total")
    assert changes == model.changes >= 1
    for steps in SPREAD_STEPS:
        exported = registry.get_sample_value(
            "foretell_step_time_spread_ratio", {"steps": str(steps)}
        )
        assert exported == model.spread(steps) > 0
