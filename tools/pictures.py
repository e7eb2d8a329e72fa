"""Pictures of results, drawn with matplotlib; the same data gives the same file."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def figure(width: float, height: float) -> "Figure":
    """An empty picture, its sizes in inches; SystemExit where matplotlib is missing."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise SystemExit(
            "pictures need matplotlib: pip install -e '.[bench]' in the checkout"
        ) from error
    mpl.rcParams["svg.hashsalt"] = "foretell"  # no random ids
    mpl.rcParams["svg.fonttype"] = "none"
    return Figure(figsize=(width, height), layout="constrained")


def save(picture: "Figure", path: Path) -> None:
    """Write an .svg or .png file, without date and version."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unknown = {"Date": None} if path.suffix == ".svg" else {"Software": None}
    picture.savefig(path, dpi=110, metadata=unknown)
