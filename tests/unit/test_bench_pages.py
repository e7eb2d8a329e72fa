"""What benchmarks write into pages, and what they keep of their runs."""

from pathlib import Path

import pytest

from bench.report import write_into
from bench.runs import Kept
from foretell.tools.intervals import change, interval


def test_a_block_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- x -->\nold\n<!-- end of x -->\nafter\n")
    for text in ("first", r"second \1 \g<0>"):
        write_into(page, "x", text)
        assert page.read_text() == f"before\n<!-- x -->\n\n{text}\n\n<!-- end of x -->\nafter\n"
    with pytest.raises(AssertionError, match="no block y"):
        write_into(page, "y", "z")


def test_an_interval_is_students() -> None:
    mean, half_width = interval([1.0, 2.0, 3.0])
    assert mean == 2.0
    assert half_width == pytest.approx(4.303 / 3**0.5)
    assert interval([5.0, 5.0]) == (5.0, 0.0)


def test_changes_up_and_down_cancel() -> None:
    assert change([2.0, 0.5]).startswith("+0.0% (-100.0 to +")
    assert change([0.5, 0.5]) == "-50.0% (-50.0 to -50.0)"


def test_results_survive_and_those_of_other_code_do_not(tmp_path: Path) -> None:
    path = tmp_path / "new" / "kept.jsonl"
    Kept(path, "this").keep(("case", 1), {"x": 1})
    assert Kept(path, "this").get(("case", 1)) == {"x": 1}
    assert Kept(path, "this").get(("case", 2)) is None
    assert Kept(path, "other").get(("case", 1)) is None
