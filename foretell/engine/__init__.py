"""The twin of vLLM's V1 scheduler: one engine for prediction, emulation and simulation."""

from foretell.engine.async_twin import AsyncTwin
from foretell.engine.batch import Batch, Outcome
from foretell.engine.book import EngineBook, Observed
from foretell.engine.content import Content
from foretell.engine.forecast import Forecast, PendingRequest, forecast
from foretell.engine.kv import BlockPool
from foretell.engine.restore import restore
from foretell.engine.sequence import Sequence
from foretell.engine.twin import Twin

__all__ = [
    "AsyncTwin",
    "Batch",
    "BlockPool",
    "Content",
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
