"""What a vector costs other clients: their slowest `/health`, memory, and its duration."""

from dataclasses import dataclass

OTHERS = "others"
"""The file with the costs to another client, which a process under attack writes: for each of its
answers a line with the CPU time that the process took, and the time waited, in seconds."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The highest costs of one vector."""

    name: str
    cpu_ms: float
    """The most CPU time of the process between two answers to others: their wait on an otherwise
    idle machine."""
    wall_ms: float
    """The longest wait of others."""
    mib: float
    """Peak memory, minus that before the vector."""
    lasted_s: float


COSTS: list[Cost] = []
"""The costs of all vectors so far."""


def worst(most: int = 10) -> str:
    """The vectors with the highest costs, by each figure."""
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
