"""Log lines on stderr: text for people, or one JSON object per line for machines.

Lines about a request have its id, whichever function writes them.
"""

import json
import logging
import sys
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime

_REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="")


def about(request_id: str) -> Mapping[str, str]:
    """Return the `extra` of a log line about a request."""
    return {"request_id": request_id}


class all_about:
    """A context in which all log lines are about one request."""

    __slots__ = ("_request_id", "_token")

    def __init__(self, request_id: str) -> None:
        self._request_id = request_id

    def __enter__(self) -> None:
        self._token = _REQUEST_ID.set(self._request_id)

    def __exit__(self, *_: object) -> None:
        _REQUEST_ID.reset(self._token)


def setup_logging(level: str, log_format: str = "text") -> None:
    """Log to stderr, one line per event."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if log_format == "json" else _Text())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    # One line per request relayed or probed is noise, and URLs may carry what users typed.
    for noisy in ("httpx", "httpcore", "uvicorn.access"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


class JsonLines(logging.Formatter):
    """One JSON object per line: `time`, `level`, `logger`, `message`, and where they apply
    `request_id` and `exception`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its newline."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if request_id := _request_id(record):
            line["request_id"] = request_id
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


class _Text(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(about)s%(message)s")

    def format(self, record: logging.LogRecord) -> str:
        request_id = _request_id(record)
        record.about = f"request {request_id}: " if request_id else ""
        return super().format(record)


def _request_id(record: logging.LogRecord) -> str:
    return str(getattr(record, "request_id", "") or _REQUEST_ID.get())
