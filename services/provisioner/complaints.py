"""What does not work, said once and not at every attempt."""

import logging

logger = logging.getLogger(__name__)


class Complaints:
    """The latest complaint of each who has one."""

    def __init__(self) -> None:
        self._open: dict[str, str] = {}

    def add(self, whose: str, complaint: str) -> None:
        """Log a complaint, unless it is the one before again."""
        if self._open.get(whose) != complaint:
            logger.warning("%s", complaint)
        self._open[whose] = complaint

    def settle(self, whose: str) -> None:
        """It works."""
        self._open.pop(whose, None)
