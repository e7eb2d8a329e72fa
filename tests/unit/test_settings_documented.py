"""Every field and setting is described (docs/reference.md is generated from the descriptions)."""

from foretell.config import ALL_SETTINGS
from foretell.tools.settings_reference import groups


def test_everything_is_described_in_sentences() -> None:
    rows = [row for group in groups() for row in group.rows]
    assert not [row[0] for row in rows if not row[-1].strip().endswith(".")]


def test_every_setting_can_be_looked_up_by_its_variable_once_per_service() -> None:
    rows = [row for group in groups() for row in group.rows]
    listed = [cell for row in rows for cell in row if cell.startswith("FORETELL_")]
    for settings in ALL_SETTINGS:
        prefix = str(settings.model_config["env_prefix"])
        for name in settings.model_fields:
            own, shared = f"{prefix}{name.upper()}", f"FORETELL_<SERVICE>_{name.upper()}"
            assert own in listed or shared in listed, own
    own_names = [name for name in listed if "<" not in name]
    twice = {name for name in own_names if own_names.count(name) > 1}
    assert not twice - {"FORETELL_SCHEDULER_POLICY", "FORETELL_SCHEDULER_POLICY_PARAMETERS"}
