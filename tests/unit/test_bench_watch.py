"""How `bench.watch` measures two commits, and what it makes of their numbers."""

import sys
from pathlib import Path

import pytest

from bench.watch import sides
from bench.watch.__main__ import measure, median_interval, row_of
from bench.watch.sides import NotMeasured, Side

PROBE = """
import json, sys
from pathlib import Path
kind, log = sys.argv[1], Path("order")
import side
assert kind != "broken" or side.NAME != "new", "there is no such cost"
print("{}", flush=True)
for number, _ in enumerate(sys.stdin):
    with log.open("a") as order:
        order.write(side.NAME[0])
    print(json.dumps({"both": side.COST + number, side.NAME: 1.0}), flush=True)
"""


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Side, Side]:
    """Two trees whose module `side` returns a cost; both work in one folder."""
    probe = tmp_path / "probe.py"
    probe.write_text(PROBE)
    monkeypatch.setattr(sides, "_PROBE", probe)
    monkeypatch.setattr(Side, "environment", lambda self: {"PYTHONPATH": str(self.tree)})
    found = []
    for name, cost in (("old", 10.0), ("new", 20.0)):
        tree = tmp_path / name
        tree.mkdir()
        (tree / "side.py").write_text(f"NAME, COST = {name!r}, {cost}\n")
        (tree / "order").symlink_to(tmp_path / "order")
        found.append(Side(name, tree, Path(sys.executable)))
    return found[0], found[1]


async def test_both_are_measured_in_turn_and_the_first_round_does_not_count(
    two: tuple[Side, Side], tmp_path: Path
) -> None:
    found = await measure("any", two, Path(sys.executable), 3, tmp_path)
    assert found == {"both": [(11.0, 21.0), (12.0, 22.0), (13.0, 23.0)]}
    assert (tmp_path / "order").read_text() in ("onnoonno", "noonnoon")


async def test_what_one_commit_does_not_have_is_not_measured(
    two: tuple[Side, Side], tmp_path: Path
) -> None:
    with pytest.raises(NotMeasured, match=r"new: broken: .*there is no such cost"):
        await measure("broken", two, Path(sys.executable), 3, tmp_path)


def test_the_interval_holds_the_median_as_often_as_it_says() -> None:
    assert median_interval([3.0, 1.0, 2.0]) == (1.0, 3.0)
    # Of 9 values the 2nd and the 8th: 1 - 2 (1 + 9) / 512 = 96%; the 3rd and the 7th: 82%.
    assert median_interval([float(i) for i in range(9)]) == (1.0, 7.0)


def test_a_row_pairs_what_was_measured_together() -> None:
    pairs = [(1.0, 2.0), (10.0, 10.0), (4.0, 2.0)]
    assert row_of("cost", pairs) == ("cost", "4", "2", "1.00", "0.50 to 2.00")
