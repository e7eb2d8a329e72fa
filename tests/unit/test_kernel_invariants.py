"""A broken invariant ends the process that owns the state; with a received state one call fails."""

import signal
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from foretell.engine import Sequence, restore_twin
from foretell.engine.forecast import Forecaster
from foretell.engine.published import header_of
from foretell.engine.questions import EngineQuestion, ExpectedArrival, Figures
from foretell.kernel.compiled import ImpossibleState
from foretell.kernel.snapshot_rows import REQUEST
from foretell.kernel.step_time import Sums, own_s
from foretell.latency.linear import LinearStepTime
from foretell.model import EngineConfig, EngineSnapshot

CONFIG = EngineConfig("m", 16, 8, 4, max_num_scheduled_tokens=8, max_model_len=128)
STEP_TIME = LinearStepTime((0.01,) * 6).packed()
NEW_REQUEST = ExpectedArrival((4.0,) * 8 + (0.0,), 0.0, 0.0, 0.0, 0.0, 8, 0, 0, 0, 1, 1)
SIMULATED = """
from foretell.engine import Sequence, Twin
from foretell.engine.table import EngineTable
from tests.unit.test_kernel_invariants import CONFIG, STEP_TIME

table, twin = EngineTable(1), Twin(CONFIG, prefix_cache={prefix_cache})
twin.add(Sequence("a", 64, 4, 4))
table.put(0, twin, STEP_TIME)
table.step(0, 0.0)
twin.engine[{field!r}] {change}
table.run(100.0, each=False)
print("went on")
"""


# With a prefix cache, the full count is made only now and then.
@pytest.mark.parametrize(
    ("field", "change", "words", "prefix_cache"),
    [
        ("free", "-= 1", b"KV blocks are not conserved", False),
        ("free", "= -100", b"more KV blocks taken than exist", False),
        ("free", "= -100", b"more KV blocks taken than exist", True),
        ("max_num_scheduled_tokens", "= 1000", b"tokens over budget", False),
        ("max_num_scheduled_tokens", "= 1000", b"tokens over budget", True),
        ("waiting", "+= 1", b"the waiting queue is miscounted", False),
    ],
)
def test_a_broken_invariant_of_its_own_engine_ends_the_process(
    field: str, change: str, words: bytes, prefix_cache: bool
) -> None:
    program = SIMULATED.format(field=field, change=change, prefix_cache=prefix_cache)
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=False, timeout=60
    )
    assert ended.returncode == -signal.SIGABRT, ended.stderr
    assert words in ended.stderr
    assert not ended.stdout


def means(forecaster: Forecaster, question: EngineQuestion) -> list[list[float]]:
    call = forecaster.prepare([question], NEW_REQUEST, 0.0)
    call.run()
    found: list[list[float]] = call.answers.means.tolist()
    return found


def header(figures: Figures) -> bytes:
    expected: Any = {"online": (np.inf, 0.0), "draft_ratios": ((), ())}
    return header_of(CONFIG, figures, (), 0.0, contents=0, inputs=0, **expected)


def test_a_picture_that_cannot_be_fails_its_forecast_only() -> None:
    forecaster = Forecaster()
    forecaster.describe(0, CONFIG)
    forecaster.believe(0, STEP_TIME)
    question = EngineQuestion(0, 2, 0, ())
    before = means(forecaster, question)
    (row,) = rows = np.zeros(1, REQUEST)
    row["prompt"], row["output"], row["computed"], row["blocks"] = 16, 1, 16, 1
    forecaster.put(0, header(Figures(1, 1, -3, 0, 1)), rows.tobytes(), b"", 0.0)
    with pytest.raises(ImpossibleState, match="more KV blocks taken than exist"):
        forecaster.forecast([question], NEW_REQUEST, 0.0)
    with pytest.raises(ImpossibleState, match="more KV blocks taken than exist"):
        forecaster.forecast([question], NEW_REQUEST, 0.0, externality=True)
    with pytest.raises(ImpossibleState, match="more KV blocks taken than exist"):
        forecaster.futures_s(question, NEW_REQUEST, 0.0)
    forecaster.put(0, header(Figures(0, 0, CONFIG.total_blocks, 0, 1)), b"", b"", 0.0)
    assert means(forecaster, question) == before


def test_a_restored_state_that_cannot_be_ends_no_process() -> None:
    snapshot = EngineSnapshot("e", "run", 1, 0.0, 0.0, CONFIG, 8, (), (), (), ())
    twin, _ = restore_twin(snapshot, lambda _: 1.0)
    twin.add(Sequence("a", 64, 4, 4))
    twin.engine["free"] -= 1
    with pytest.raises(ImpossibleState, match="not conserved"):
        twin.schedule()


def test_a_step_that_takes_no_time_is_the_models_fault() -> None:
    nothing = STEP_TIME._replace(coefficients=np.zeros(8))
    snapshot = EngineSnapshot("e", "run", 1, 0.0, 0.0, CONFIG, 8, (), (), (), ())
    twin, _ = restore_twin(snapshot, lambda _: 1.0)
    twin.add(Sequence("a", 64, 4, 4))
    with pytest.raises(ImpossibleState, match="took no time"):
        twin.schedule(0.0, nothing)


def test_arrays_of_other_items_are_refused() -> None:
    short = STEP_TIME._replace(coefficients=np.zeros(8, np.float32))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="items of 8 bytes, not of 4"):
        own_s(short, Sums(1, 1, 1, 0, 0, 0))
    apart = STEP_TIME._replace(coefficients=np.zeros(16)[::2])
    with pytest.raises(ValueError, match="contiguous"):
        own_s(apart, Sums(1, 1, 1, 0, 0, 0))
    with pytest.raises(TypeError, match="tuple of 3"):
        own_s((), Sums(1, 1, 1, 0, 0, 0))  # type: ignore[arg-type]
