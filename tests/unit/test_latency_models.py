"""Linear step time, the roofline prior, and the profiles that ship."""

import random
from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest

from foretell.config import list_profiles, load_profile
from foretell.latency.calibration import OnlineStepTime
from foretell.latency.devices import DEVICES, device_spec, model_spec
from foretell.latency.features import FEATURES
from foretell.latency.linear import LinearStepTime, StepTimeModel
from foretell.latency.roofline import (
    Efficiency,
    estimated_kv_blocks,
    joint,
    roofline_step_time,
)
from foretell.model import BatchShape, DeviceSpec

DOCS = Path(__file__).parents[2] / "foretell/latency/profiles/README.md"
DEVICE_OF_PROFILE = {
    "A30": "A30",
    "A100": "A100-80GB",
    "H100": "H100-SXM",
    "RTXPRO6000": "RTXPRO6000",
}
FIELDS = ("prefill_seqs", "prefill_tokens", "prefill_pairs", "decode_seqs", "decode_pairs")


def random_shape(rng: random.Random) -> dict[str, int]:
    """Any shape, as keyword arguments."""
    return dict(zip(FIELDS, (rng.randint(0, n) for n in (3, 2048, 10**6, 256, 10**5)), strict=True))


def step_models() -> list[StepTimeModel]:
    """One model of each kind."""
    linear = LinearStepTime((8e-3, 40e-6, 3e-9, 200e-6, 90e-6, 200e-9))
    online = OnlineStepTime(linear)
    online.observe(BatchShape(decode_seqs=4, decode_pairs=900), 0.012)
    return [linear, online, roofline_step_time(device_spec("L4"), model_spec("Llama-3.1-8B"))]


@pytest.mark.parametrize("model", step_models(), ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("steps", [1, 2, 17, 300])
def test_a_decode_run_is_the_sum_of_its_steps(model: StepTimeModel, steps: int) -> None:
    shape = BatchShape(decode_seqs=7, decode_pairs=3500)
    total = sum(
        model.step_s(BatchShape(decode_seqs=7, decode_pairs=3500 + 7 * i)) for i in range(steps)
    )
    assert model.decode_run_s(shape, steps) == pytest.approx(total)


def test_linear_refuses_a_wrong_number_of_coefficients() -> None:
    with pytest.raises(ValueError, match="coefficients"):
        LinearStepTime((1.0, 2.0))


def test_linear_never_falls_below_its_floor() -> None:
    model = LinearStepTime((-1.0, 0.0, 0.0, 0.0, 0.0, 0.0), floor_s=1e-4)
    assert model.step_s(BatchShape(decode_seqs=1)) == 1e-4
    assert model.decode_run_s(BatchShape(decode_seqs=1), 10) == pytest.approx(1e-3)


def test_roofline_by_hand() -> None:
    device = DeviceSpec("d", flops=1e12, memory_bandwidth_bytes_per_s=1e11, memory_bytes=1e10)
    exact = Efficiency(1.0, 1.0, 1.0, 0.0, 0.0, 0.0)
    step, token, prefill_pair, sequence, decode, decode_pair = roofline_step_time(
        device, model_spec("Llama-2-7b-hf"), exact
    ).coefficients_s
    assert step == pytest.approx(2 * 6.738e9 / 1e11)
    assert token == decode == pytest.approx(2 * 6.738e9 / 1e12)
    assert prefill_pair == pytest.approx(4 * 32 * 4096 / 1e12)
    assert sequence == 0.0
    assert decode_pair == pytest.approx(524288 / 1e11)


def test_roofline_refuses_impossible_sizes() -> None:
    with pytest.raises(ValueError, match="positive"):
        roofline_step_time(DeviceSpec("d", 0.0, 1.0, 1.0), model_spec("Llama-2-7b-hf"))
    with pytest.raises(ValueError, match="efficiencies"):
        roofline_step_time(device_spec("A30"), model_spec("Llama-2-7b-hf"), Efficiency(memory=0.0))


def test_tensor_parallel_devices_add_up() -> None:
    device = device_spec("A30")
    both = joint(device, 2)
    assert both.flops == 2 * device.flops
    assert both.memory_bytes == 2 * device.memory_bytes
    with pytest.raises(ValueError, match="at least one"):
        joint(device, 0)


def test_kv_blocks_are_what_the_weights_leave() -> None:
    device, model = device_spec("H100-SXM"), model_spec("Llama-3.1-8B")
    assert estimated_kv_blocks(device, model) == 24881
    assert estimated_kv_blocks(device_spec("A30"), model_spec("Qwen3-32B")) == 0


def test_layers_with_a_window_read_and_keep_less() -> None:
    device, model = device_spec("H100-SXM"), model_spec("Llama-3.1-8B")
    half = replace(model, windowed_layers=16, window_tokens=1024)
    # A block holds half of the layers; these see a quarter of the 4,096 tokens.
    assert estimated_kv_blocks(device, half) == pytest.approx(2 * 24881, abs=1)
    whole, windowed = (roofline_step_time(device, one).coefficients_s for one in (model, half))
    assert windowed[2] / whole[2] == windowed[5] / whole[5] == pytest.approx(0.5 + 0.5 / 4)


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(KeyError, match="H100-SXM"):
        device_spec("H1000")
    with pytest.raises(KeyError, match=r"Llama-3\.1-8B"):
        model_spec("nope")
    with pytest.raises(ValueError, match="A30/Llama-2-7b-hf"):
        load_profile("../settings")


def test_every_device_is_within_the_plausible() -> None:
    assert len(DEVICES) >= 40
    for spec in DEVICES.values():
        assert 5e13 < spec.flops < 3e15
        # FLOPs per byte at which GEMMs become compute bound: 37 for an H20, 496 for a Gaudi 3.
        assert 30 < spec.flops / spec.memory_bandwidth_bytes_per_s < 500
        assert 15e9 < spec.memory_bytes < 300e9


def test_the_profiles_that_others_rely_on_ship() -> None:
    files = (resources.files("foretell.latency") / "profiles").iterdir()
    assert len(list_profiles()) == sum(f.name.endswith(".json") for f in files)
    assert {"A30/Llama-2-7b-hf", "RTXPRO6000/Llama-3.1-8B"} <= set(list_profiles())
    a30 = load_profile("A30/Llama-2-7b-hf")
    assert (a30.total_blocks, a30.block_size_tokens) == (1056, 16)
    assert (a30.max_num_seqs, a30.max_num_batched_tokens) == (48, 512)


@pytest.mark.parametrize("name", list_profiles())
def test_a_profile_is_complete_and_monotone(name: str) -> None:
    profile = load_profile(name)
    assert profile.name == name
    assert len(profile.coefficients_s) == len(FEATURES)
    assert 0 < profile.relative_residual < 0.15
    assert profile.total_blocks * profile.block_size_tokens >= profile.max_model_len
    assert "github" in profile.provenance or "aiconfigurator" in profile.provenance
    model, rng = LinearStepTime(profile.coefficients_s), random.Random(name)
    for _ in range(200):
        shape = random_shape(rng)
        more = dict(shape)
        more[rng.choice(FIELDS)] += rng.randint(1, 500)
        assert model.step_s(BatchShape(**more)) >= model.step_s(BatchShape(**shape))
    one_prefill = BatchShape(1, 512, 512 * 256)
    assert model.step_s(one_prefill) > model.step_s(BatchShape(1, 64, 64 * 32))


@pytest.mark.parametrize("name", list_profiles())
def test_profile_and_roofline_agree_roughly(name: str) -> None:
    """A wrong unit or table would differ by far more than this."""
    device, model = name.split("/")
    profile = load_profile(name)
    if profile.tensor_parallel * profile.data_parallel > 1:
        pytest.skip("the datasheet knows no link between devices")
    prior = roofline_step_time(device_spec(DEVICE_OF_PROFILE[device]), model_spec(model))
    fitted = LinearStepTime(profile.coefficients_s)
    for shape in (
        BatchShape(decode_seqs=1, decode_pairs=500),
        BatchShape(decode_seqs=48, decode_pairs=48_000),
        BatchShape(1, 512, 512 * 256),
        BatchShape(1, 400, 400 * 1200, 32, 32_000),
    ):
        assert fitted.step_s(shape) == pytest.approx(prior.step_s(shape), rel=0.4)


@pytest.mark.parametrize("name", list_profiles())
def test_every_profile_is_documented(name: str) -> None:
    assert f"`{name}`" in DOCS.read_text(encoding="utf-8")
