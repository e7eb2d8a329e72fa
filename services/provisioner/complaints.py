"""Logs a repeated failure once, and not at every attempt."""

import logging

logger = logging.getLogger(__name__)


class Complaints:
    """The open complaint of each source that has one."""

    def __init__(self) -> None:
        self._open: dict[str, str] = {}

    def add(self, whose: str, complaint: str) -> None:
        """Log a complaint, unless it repeats the open one."""
        if self._open.get(whose) != complaint:
            logger.warning("%s", complaint)
        self._open[whose] = complaint

    def settle(self, whose: str) -> None:
        """Close the complaint of a source that works again."""
        self._open.pop(whose, None)
