"""Every setting is described (docs/reference.md is generated from the descriptions)."""

from foretell.config import ALL_SETTINGS
from tools.settings_reference import settings_of


def test_every_setting_is_described() -> None:
    for settings_class in ALL_SETTINGS:
        for setting in settings_of(settings_class):
            assert setting.description not in ("", "None"), setting.variable
            assert setting.variable.startswith("FORETELL_")
