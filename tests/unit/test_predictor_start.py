"""The step times that a predictor starts with."""

import pytest
from pydantic import ValidationError

from foretell.config import PredictorSettings, list_profiles, load_profile
from foretell.kernel.step_time import TABLES_SCALE
from foretell.latency.devices import device_spec, model_spec
from foretell.latency.linear import StepTimeModel
from foretell.latency.roofline import roofline_step_time
from foretell.latency.tables import profile_step_time
from foretell.model import BatchShape
from foretell.services.predictor.__main__ import make_step_time

SHAPE = BatchShape(1, 300, 300 * 500, 20, 20_000)


def tables_scale(model: StepTimeModel) -> float:
    """The factor on the tables' times; 0 if there are no tables."""
    return float(model.packed().coefficients[TABLES_SCALE])


@pytest.mark.parametrize("name", list_profiles())
def test_a_shipped_profile_starts_from_its_tables(name: str) -> None:
    model = make_step_time(name)
    expected = profile_step_time(load_profile(name)).step_s(SHAPE)
    assert model.step_s(SHAPE) == pytest.approx(expected)
    assert tables_scale(model.current()) == 1.0


def test_known_names_without_a_profile_start_from_the_datasheet() -> None:
    model = make_step_time("H100-SXM/Qwen3-32B")
    expected = roofline_step_time(device_spec("H100-SXM"), model_spec("Qwen3-32B"))
    assert model.step_s(SHAPE) == pytest.approx(expected.step_s(SHAPE))
    assert tables_scale(model.current()) == 0.0
    assert model.relative_error == 0.5


def test_no_name_starts_from_nothing() -> None:
    assert make_step_time("").relative_error > 1.0


@pytest.mark.parametrize("name", ["nonsense", "H100-SXM", "H100-SXM/", "/Qwen3-32B", "A31/x", "/"])
def test_an_unknown_name_is_told_what_there_is(name: str) -> None:
    with pytest.raises(ValueError, match=r"A30/Llama-2-7b-hf.*H100-SXM.*Qwen3-32B"):
        make_step_time(name)


def test_a_process_refuses_it_among_its_settings() -> None:
    with pytest.raises(ValidationError, match="profile 'A31/x' is not known"):
        PredictorSettings(profile="A31/x")
