"""The measurement of predictions' cost at its smallest: its result says what it measured."""

from foretell.tools.harness.cases import Size
from foretell.tools.harness.predict import PredictOptions, measure_predict

KEYS = ("kernel_us_p50", "kernel_us_p99", "rpc_ms_p50", "rpc_ms_p99")


def test_it_tells_the_cost_of_predictions() -> None:
    found = measure_predict(PredictOptions(Size(3, 2), predictions=2))
    assert all(found[key] > 0 for key in KEYS), found
    assert found["kernel_us_p50"] <= found["kernel_us_p99"]
    assert (found["running"], found["waiting"], found["samples"]) == (3, 2, 2)
    assert found["async_scheduling"]
