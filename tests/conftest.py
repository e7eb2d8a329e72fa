"""What a run over several workers (pytest-xdist) needs to know of all tests."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # before the one of xdist, which reads the marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that share a fixture of their module or session stay with one worker."""
    for item in items:
        known = getattr(item, "_fixtureinfo", None)
        if known is None:
            continue
        defined = [each[-1] for each in known.name2fixturedefs.values() if each]
        ours = [
            each for each in defined if Path(each.func.__code__.co_filename).is_relative_to(ROOT)
        ]
        if any(each.scope in ("module", "session") for each in ours):
            item.add_marker(pytest.mark.xdist_group(item.path.name))
