"""What a vector costs others: the worst `/health` of theirs, memory, and the time until its end."""

from dataclasses import dataclass

OTHERS = "others"
"""The file in which a scheduler's process tells how others fare: a line for each answer of theirs,
the CPU time that the process took until then, and the time that they waited, in seconds."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The worst of one vector."""

    name: str
    cpu_ms: float
    """The most CPU time of the process between two answers to others: what they wait for on a
    machine that does nothing else."""
    wall_ms: float
    """The longest that they waited."""
    mib: float
    """Memory at its peak, beyond that before."""
    lasted_s: float


COSTS: list[Cost] = []
"""Those of all vectors so far."""


def worst(most: int = 10) -> str:
    """The worst vectors by each figure."""
    lines = []
    for figure, text in (
        ("cpu_ms", "ms of CPU time until others' /health was answered"),
        ("wall_ms", "ms until it was, beside all else that this machine did"),
        ("mib", "MiB more at the peak"),
        ("lasted_s", "s in all"),
    ):
        lines += ["", text]
        for each in sorted(COSTS, key=lambda cost: -getattr(cost, figure))[:most]:
            lines.append(f"{getattr(each, figure):9.1f}  {each.name}")
    return "\n".join(lines)
