"""Configuration from files and the environment, as operators and supervisors set it."""

from foretell.config.cluster import Cluster, load_cluster
from foretell.config.layout import Layout, parse_instances
from foretell.config.marks import ClusterError
from foretell.config.policies import build_policy, build_strategy, setting_of
from foretell.config.profiles import check_profile, list_profiles, load_profile
from foretell.config.settings import (
    ALL_SETTINGS,
    BatchSettings,
    EmulatorSettings,
    LauncherSettings,
    PluginSettings,
    PredictorSettings,
    ProvisionerSettings,
    SchedulerSettings,
    TaggerSettings,
)

__all__ = [
    "ALL_SETTINGS",
    "BatchSettings",
    "Cluster",
    "ClusterError",
    "EmulatorSettings",
    "LauncherSettings",
    "Layout",
    "PluginSettings",
    "PredictorSettings",
    "ProvisionerSettings",
    "SchedulerSettings",
    "TaggerSettings",
    "build_policy",
    "build_strategy",
    "check_profile",
    "list_profiles",
    "load_cluster",
    "load_profile",
    "parse_instances",
    "setting_of",
]
