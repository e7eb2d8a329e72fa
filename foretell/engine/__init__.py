"""The twin of vLLM's V1 scheduler: one engine for prediction, emulation and simulation."""

from foretell.engine.batch import StepBatch, StepOutcome
from foretell.engine.content import Content
from foretell.engine.forecast import Forecaster
from foretell.engine.ledger import Ledger, Observed
from foretell.engine.questions import Forecast
from foretell.engine.sequence import Sequence
from foretell.engine.snapshot_predictor import SnapshotPredictor
from foretell.engine.snapshots import restore_twin
from foretell.engine.twin import Twin

__all__ = [
    "StepBatch",
    "Content",
    "Forecast",
    "Forecaster",
    "Ledger",
    "Observed",
    "StepOutcome",
    "Sequence",
    "SnapshotPredictor",
    "Twin",
    "restore_twin",
]
