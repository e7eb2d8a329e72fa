"""The twin of vLLM's V1 scheduler: one engine for prediction, emulation and simulation."""

from foretell.engine.batch import Batch, Outcome
from foretell.engine.book import EngineBook, Observed
from foretell.engine.content import Content
from foretell.engine.forecast import Forecast, Forecaster, PendingRequest
from foretell.engine.restore import restore_twin
from foretell.engine.sequence import Sequence
from foretell.engine.twin import Twin

__all__ = [
    "Batch",
    "Content",
    "EngineBook",
    "Forecast",
    "Forecaster",
    "Observed",
    "Outcome",
    "PendingRequest",
    "Sequence",
    "Twin",
    "restore_twin",
]
