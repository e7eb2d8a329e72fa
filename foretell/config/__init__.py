"""The bridge to files and the environment: what operators and supervisors set."""

from foretell.config.policies import build_policy, setting_of
from foretell.config.profiles import check_profile, list_profiles, load_profile
from foretell.config.settings import (
    ALL_SETTINGS,
    EmulatorSettings,
    LauncherSettings,
    PluginSettings,
    PredictorSettings,
    SchedulerSettings,
    TaggerSettings,
)

__all__ = [
    "ALL_SETTINGS",
    "EmulatorSettings",
    "LauncherSettings",
    "PluginSettings",
    "PredictorSettings",
    "SchedulerSettings",
    "TaggerSettings",
    "build_policy",
    "check_profile",
    "list_profiles",
    "load_profile",
    "setting_of",
]
