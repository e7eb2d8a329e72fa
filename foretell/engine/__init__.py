"""The twin of vLLM's V1 scheduler: one engine for prediction, emulation and simulation."""

from foretell.engine.book import EngineBook, Observed
from foretell.engine.forecast import Forecast, PendingRequest, forecast
from foretell.engine.restore import restore
from foretell.engine.sequence import Sequence
from foretell.engine.twin import Batch, Outcome, Twin

__all__ = [
    "Batch",
    "EngineBook",
    "Forecast",
    "Observed",
    "Outcome",
    "PendingRequest",
    "Sequence",
    "Twin",
    "forecast",
    "restore",
]
