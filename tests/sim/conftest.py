"""`--seed N` runs only this seed of every sweep, to replay a failure."""

import pytest

from tests.sweeps import cases

SWEEP_SEEDS = cases(56, 10)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=None, help="run the sweeps with this seed only")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        # The option does not exist if a run of all tests found this file late.
        only = metafunc.config.getoption("--seed", default=None)
        seeds = range(SWEEP_SEEDS) if only is None else [only]
        swept = [pytest.param(seed, marks=pytest.mark.sweep) for seed in seeds]
        metafunc.parametrize("seed", swept)
