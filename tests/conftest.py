"""Groups tests for runs over several workers (pytest-xdist)."""

from collections.abc import Generator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None]:
    """Keep tests that share a fixture of their module or session on one worker."""
    grouped = [each for each in items if _shares(each)]
    for item in grouped:
        item.add_marker(pytest.mark.xdist_group(item.path.name))
    yield  # xdist reads the markers
    if getattr(config.option, "loadgroup", False):
        assert all("@" in each.nodeid for each in grouped), "this pytest-xdist does not group tests"


def _shares(item: pytest.Item) -> bool:
    known = getattr(item, "_fixtureinfo", None)
    if known is None:
        return False
    defined = [each[-1] for each in known.name2fixturedefs.values() if each]
    ours = [each for each in defined if Path(each.func.__code__.co_filename).is_relative_to(ROOT)]
    return any(each.scope in ("module", "session") for each in ours)
