"""`python -m bench`: the list of benchmarks, and pages that show the latest measurements."""

import subprocess
import sys
from importlib import import_module

import pytest

from bench.catalogue import README, benchmarks, readme_table
from bench.report import Benchmark

FOUND = benchmarks()


def test_every_benchmark_asks_a_question_and_says_where_its_answer_is() -> None:
    assert FOUND
    for name, benchmark in FOUND.items():
        assert benchmark.question.endswith("?"), name
        assert benchmark.result.exists(), name
        assert benchmark.page.exists(), name


def test_the_readme_lists_them() -> None:
    table = readme_table(FOUND.values())
    assert table in README.read_text(), "run python -m bench --readme"


@pytest.mark.parametrize("name", FOUND)
def test_a_page_shows_the_last_numbers(name: str) -> None:
    module = import_module(f"bench.{name}")
    assert isinstance(module.BENCH, Benchmark)
    assert module.BENCH.name == name
    written = module.BENCH.page.read_text()
    for block, text in module.tables(module.BENCH.read()).items():
        shown = f"<!-- {block} -->\n\n{text.strip()}\n\n<!-- end of {block} -->"
        assert shown in written, f"run python -m bench --tables {name}"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "bench", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)


def test_the_list_names_all() -> None:
    listed = run()
    assert listed.returncode == 0, listed.stderr
    assert all(name in listed.stdout for name in FOUND)


def test_an_unknown_benchmark_is_refused() -> None:
    refused = run("placement.nothing")
    assert refused.returncode == 1
    assert "python -m bench lists them" in refused.stderr


def test_one_can_be_run_by_its_name() -> None:
    shown = run("placement.yardstick", "--help")
    assert shown.returncode == 0, shown.stderr
    assert "TRACES" in shown.stdout


def test_a_quick_run_writes_nothing() -> None:
    before = FOUND["overhead.predict"].read()
    shown = run("overhead.predict", "--quick")
    assert shown.returncode == 0, shown.stderr
    assert "| 48 + 50 | to compare |" in shown.stdout
    assert FOUND["overhead.predict"].read() == before
