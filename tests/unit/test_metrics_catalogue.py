"""The catalogue lists exactly the metrics that the processes expose."""

from math import inf

import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from foretell.length.estimate import level_of
from foretell.model import LengthEstimate
from foretell.services.predictor.metrics import PredictorMetrics
from foretell.services.provisioner.metrics import ProvisionerMetrics
from foretell.services.scheduler.metrics import SchedulerMetrics
from foretell.services.tagger.metrics import TaggerMetrics
from foretell.telemetry import Declared
from foretell.tools.observability.catalogue import by_process

UNIT_ENDINGS = {"seconds": "_seconds", "ratio": "_ratio", "bytes": "_bytes"}


@pytest.mark.parametrize(
    "declared",
    [
        SchedulerMetrics(CollectorRegistry()),
        PredictorMetrics(CollectorRegistry()),
        TaggerMetrics(),
        ProvisionerMetrics(),
    ],
    ids=["scheduler", "predictor", "tagger", "provisioner"],
)
def test_what_a_process_registers_is_in_its_catalogue_and_nothing_else(declared: Declared) -> None:
    exposed = {
        family.name + ("_total" if family.type == "counter" else ""): family.type
        for family in declared.registry.collect()
    }
    assert {metric.name: metric.kind for metric in declared.catalogue} == exposed
    assert len(declared.catalogue) == len(exposed)


def test_names_say_their_units() -> None:
    for metric in (each for found in by_process().values() for each in found):
        assert metric.name.startswith(("foretell_", "process_"))
        assert metric.unit
        assert metric.meaning.strip()
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        if metric.unit in UNIT_ENDINGS and metric.kind != "counter":
            assert metric.name.endswith(UNIT_ENDINGS[metric.unit]), metric.name
        assert "request_id" not in metric.labels


def test_the_level_of_a_length_is_the_lowest_quantile_that_it_does_not_exceed() -> None:
    estimate = LengthEstimate(50.0, ((0.1, 10.0), (0.5, 40.0), (0.9, 100.0)))
    found = [level_of(estimate, tokens) for tokens in (1, 10, 11, 40, 100, 101)]
    assert found == [0.1, 0.1, 0.5, 0.5, 0.9, 1.0]
    assert level_of(LengthEstimate(50.0), 20) is None


def test_a_histogram_counts_as_prometheus_own_does() -> None:
    bounds, values = (-1.0, 0.0, 0.5, 2.0), (-7.0, -1.0, -0.5, 0.0, 0.5, 0.6, 2.0, 9.0, inf)
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    made = (
        Declared(ours).histogram("h", "s", "m", ("a",), buckets=bounds),
        Histogram("h", "m", ("a",), buckets=bounds, registry=theirs),
    )
    for value in values:
        for each in made:
            each.labels("x").observe(value)
    assert _samples(ours) == _samples(theirs)


def test_a_counter_only_grows() -> None:
    counter = Declared(CollectorRegistry()).counter("c", "s", "m", ("a",))
    counter.labels("x").inc()
    with pytest.raises(ValueError, match="only grow"):
        counter.labels("x").inc(-1)


def _samples(registry: CollectorRegistry) -> list[bytes]:
    lines = generate_latest(registry).splitlines()
    return [line for line in lines if b"_created" not in line]
