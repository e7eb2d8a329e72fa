"""A misspelt variable is refused, like a misspelt field of the cluster file."""

import pytest

from foretell.config import ALL_SETTINGS, PluginSettings, SchedulerSettings, TaggerSettings
from foretell.config.variables import misspelt
from foretell.services.process import runtime


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("FORETELL_SCHEDULER_POLICI", "FORETELL_SCHEDULER_POLICY?"),
        ("foretell_scheduler_polici", "FORETELL_SCHEDULER_POLICY?"),
        ("FORETELL_SHEDULER_POLICY", "SCHEDULER?"),
        ("FORETELL_SCHEDULER_ZZZZ_QQQQ_XXXX_YYYY", "?"),
    ],
)
def test_a_process_does_not_start_with_a_misspelt_variable(
    variable: str, meant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "slo")
    with pytest.raises(SystemExit) as stopped:
        runtime.checked(SchedulerSettings)
    assert variable in str(stopped.value)
    assert meant in str(stopped.value)


@pytest.mark.parametrize("settings", ALL_SETTINGS)
def test_every_setting_is_known(settings: type) -> None:
    own = {
        f"{each.model_config['env_prefix']}{n.upper()}"
        for each in ALL_SETTINGS
        for n in each.model_fields
    }
    others = {
        "PATH",
        "FORETELL_IMAGE",
        "FORETELL_API_KEY",
        "FORETELL_ENGINE_API_KEY",
        runtime.PARENT_PID,
    }
    assert not list(misspelt(settings, own | others))


def test_a_process_leaves_the_variables_of_others_alone() -> None:
    assert not list(misspelt(TaggerSettings, ["FORETELL_SCHEDULER_POLICI"]))
    assert list(misspelt(PluginSettings, ["FORETELL_PLUGIN_SNAPSHOT_ENDPONT"]))
