"""No service compiles while it serves: that takes seconds, in which it would do nothing else."""

import subprocess
import sys

PROGRAM = """
from numba.core.dispatcher import Dispatcher
from foretell.engine import forecast, warm

warm.warm_forecast()
calls = {name: each for name, each in vars(forecast).items() if isinstance(each, Dispatcher)}
assert calls
print(*(name for name, each in calls.items() if not each.signatures))
"""


def test_all_that_forecasts_call_is_compiled_before() -> None:
    """In a process of its own: in this one other tests have called it."""
    cold = subprocess.run(
        [sys.executable, "-c", PROGRAM], check=True, timeout=300, capture_output=True, text=True
    ).stdout
    assert not cold.split()
