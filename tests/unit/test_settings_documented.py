"""Every field and setting is described (docs/reference.md is generated from the descriptions)."""

from collections import Counter

from foretell.config import ALL_SETTINGS
from foretell.tools.settings_reference import groups


def test_everything_is_described_in_sentences() -> None:
    entries = [entry for group in groups() for entry in group.entries]
    assert not [entry.name for entry in entries if not entry.meaning.strip().endswith(".")]


def test_every_setting_can_be_looked_up() -> None:
    listed = [entry.name.rpartition(".")[2] for group in groups() for entry in group.entries]
    for settings in ALL_SETTINGS:
        assert set(settings.model_fields) <= {*listed, "policy", "policy_parameters"}


def test_nothing_is_listed_twice_in_a_group() -> None:
    for group in groups():
        assert max(Counter(entry.name for entry in group.entries).values()) == 1
