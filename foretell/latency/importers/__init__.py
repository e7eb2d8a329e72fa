"""Profiles from the kernel tables that others have published.

Each importer takes the rows of its source's tables and answers how long the parts of a step take
(`StepSource`); `tabulate` samples them into a profile. Reading the files is the caller's.
"""

from foretell.latency.importers.aiconfigurator import AiConfiguratorSource, AiConfiguratorTables
from foretell.latency.importers.aiconfigurator_rows import Types
from foretell.latency.importers.linear_fit import fit_linear
from foretell.latency.importers.llmservingsim import Link, LlmServingSimSource
from foretell.latency.importers.source import StepSource, tabulate
from foretell.latency.importers.vidur import VidurSource

__all__ = [
    "AiConfiguratorSource",
    "AiConfiguratorTables",
    "Link",
    "LlmServingSimSource",
    "StepSource",
    "Types",
    "VidurSource",
    "fit_linear",
    "tabulate",
]
