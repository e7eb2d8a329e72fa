"""docs/settings.md is what `foretell settings --markdown` prints."""

from pathlib import Path

from foretell.config import ALL_SETTINGS
from tools.settings_reference import markdown, settings_of

DOCUMENT = Path(__file__).parents[2] / "docs" / "settings.md"


def test_document_is_current() -> None:
    assert DOCUMENT.read_text() == markdown(), (
        "run: foretell settings --markdown > docs/settings.md"
    )


def test_every_setting_is_described() -> None:
    for settings_class in ALL_SETTINGS:
        for setting in settings_of(settings_class):
            assert setting.description not in ("", "None"), setting.variable
            assert setting.variable.startswith("FORETELL_")
