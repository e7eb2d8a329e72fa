"""Files that are read again while a process runs."""

import logging
import time
from collections.abc import Callable
from pathlib import Path

from foretell.services.process.folders import file_version

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0


class Reread:
    """Files that are read again when they have changed. While they cannot be used, the earlier
    content stays in use, and the reason is logged once."""

    def __init__(
        self,
        what: str,
        read: Callable[[], None],
        *files: Path,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`read` is called at once, and raises OSError, ValueError or SystemExit for files that
        cannot be used; `what` names their content in the log."""
        self._what = what
        self._read = read
        self._files = files
        self._clock = clock
        self._looked_s = clock()
        self._problem = ""
        self._versions = [file_version(each) for each in files]
        read()

    def look(self) -> None:
        """Read the files again if they have changed, which is checked at most once a second."""
        now_s = self._clock()
        if now_s < self._looked_s + LOOK_EVERY_S:
            return
        self._looked_s = now_s
        try:
            versions = [file_version(each) for each in self._files]
            if versions != self._versions:
                self._read()
                self._versions = versions
                logger.info("%s read again from %s", self._what, self._files[0])
            self._problem = ""
        except (OSError, ValueError, SystemExit) as error:
            if str(error) != self._problem:
                logger.warning("%s not taken in, the old stay: %s", self._what, error)
            self._problem = str(error)
