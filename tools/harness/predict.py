"""`foretell bench predict`: the cost of predictions for one size of engine, as one JSON object."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from foretell.tools.harness.cases import RESERVATIONS, STATES, Size
from foretell.tools.harness.kernel import PROFILE, time_kernel
from foretell.tools.harness.machine import describe_machine
from foretell.tools.harness.snapshots import time_snapshots
from foretell.tools.progress import progress


@dataclass(frozen=True, slots=True)
class PredictOptions:
    """Options of the measurement."""

    size: Size
    predictions: int = 1000
    async_scheduling: bool = True


def measure_predict(options: PredictOptions) -> dict[str, object]:
    """The measurements; a progress bar on stderr tells how far they are."""
    facts = _facts(options)  # before: the load average is not ours yet
    size, count, ahead = options.size, options.predictions, options.async_scheduling
    with progress() as bar:

        def tick(what: str) -> Callable[[], None]:
            task = bar.add_task(f"{size}: {what}", total=count)
            return lambda: bar.advance(task)

        kernel = time_kernel(size, count, tick("rollouts"), async_scheduling=ahead)
        foretold = time_kernel(
            size,
            count,
            tick("rollouts with later arrivals"),
            async_scheduling=ahead,
            expect_arrivals=True,
        )
        writes, reads, takes = time_snapshots(size, count, tick("snapshots"))
    return {
        **facts,
        **_levels("kernel_us", kernel, 1e-6),
        **_levels("kernel_expecting_us", foretold, 1e-6),
        **_levels("snapshot_write_us", writes, 1e-6),
        **_levels("snapshot_read_us", reads, 1e-6),
        **_levels("snapshot_take_us", takes, 1e-6),
    }


def _facts(options: PredictOptions) -> dict[str, object]:
    return {
        "running": options.size.running,
        "waiting": options.size.waiting,
        "reserved": RESERVATIONS,
        "samples": options.predictions,
        "states": STATES,
        "async_scheduling": options.async_scheduling,
        "profile": PROFILE,
        "machine": describe_machine("foretell", "numpy", "grpcio", "protobuf", "uvloop"),
    }


def _levels(name: str, values_s: Sequence[float], unit_s: float) -> dict[str, float]:
    """The least, p10, p50 and p99: the first two say what others on the machine did not add."""
    p10, p50, p99 = np.percentile(values_s, (10, 50, 99)) / unit_s
    return {
        f"{name}_p50": round(float(p50), 4),
        f"{name}_p99": round(float(p99), 4),
        f"{name}_p10": round(float(p10), 4),
        f"{name}_min": round(min(values_s) / unit_s, 4),
    }
