"""Takes in what one predictor publishes, and comes back to it whenever its stream ends."""

import logging
from collections.abc import Callable

from google.protobuf.message import DecodeError

from foretell import wire
from foretell.engine.published import SnapshotError
from foretell.engine.snapshot_cache import FollowedEngine
from foretell.latency.tables import NO_TABLES, packed_tables
from foretell.model import RequestSpec
from foretell.services.process.peers import Peer
from foretell.services.process.traffic import Traffic
from foretell.v1 import predictor_pb2
from foretell.wire.published import Reader

logger = logging.getLogger(__name__)

_LOST_S = 10.0
"""Without a message for so long, of which there is one a second, the predictor's host is gone."""


class SnapshotStream(Peer):
    """One followed predictor, from `start` to `stop`."""

    def __init__(
        self,
        address: str,
        traffic: Traffic,
        engine: FollowedEngine,
        refused: Callable[[str], None],
        shown: Callable[[bool], None],
    ) -> None:
        """`address` is the predictor's own; `refused` gets why a message was refused, `shown`
        that there is a snapshot, or that there will be no new ones."""
        super().__init__(address, traffic)
        self.engine = engine
        self.unpredicted = ""
        """Why there is no snapshot of the engine, where its predictor says so."""
        self._refused = refused
        self._shown = shown
        self._is_shown = False
        self._reader = Reader(packed_tables, NO_TABLES)
        self._heard_s = 0.0

    def still_open(self, request: RequestSpec, age_s: float) -> None:
        """The stream begins while this request, sent so long ago, is in progress."""

    def told(self, message: predictor_pb2.Published) -> None:
        """What else is in a message whose snapshot was taken in."""

    def began(self) -> None:
        super().began()
        self._reader = Reader(packed_tables, NO_TABLES)
        self._heard_s = self._loop.time()
        for request, age_s in self.engine.begin(self._heard_s):
            self.still_open(request, age_s)

    def ended(self) -> None:
        super().ended()
        self._show(False)

    def is_lost(self) -> bool:
        """The predictor has said nothing for too long."""
        return self._loop.time() - self._heard_s > _LOST_S

    def heard(self, payload: bytes) -> None:
        """The predictor has published something."""
        self._heard_s = now_s = self._loop.time()
        try:
            message = predictor_pb2.Published.FromString(payload)
            self.engine.hear(self._reader.read(message), now_s)
            self._learn_reason(wire.checked_reason(message.unpredicted))
        except DecodeError:
            self._refused("bytes")
            return
        except (SnapshotError, wire.WireError) as error:
            self._refused(str(error))
            return
        self._show(self.engine.predictor is not None)
        self.told(message)

    def _learn_reason(self, reason: str) -> None:
        if reason and reason != self.unpredicted:
            logger.warning("the engine of %s is not predicted: %s", self._address, reason)
        self.unpredicted = reason

    def _show(self, shown: bool) -> None:
        if shown != self._is_shown:
            self._is_shown = shown
            self._shown(shown)
