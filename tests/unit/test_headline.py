"""The first page says what the benchmarks found last."""

from bench.headline import headline
from bench.report import ROOT


def test_the_first_page_is_up_to_date() -> None:
    assert headline() in (ROOT / "README.md").read_text(), "run python -m bench.headline"
