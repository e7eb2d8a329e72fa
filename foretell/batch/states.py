"""The life of one batch: which states follow each other, and what is counted on the way."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, Self

from foretell.batch.lines import LineError
from foretell.batch.records import NO_USAGE, TokenUsage


class Status(StrEnum):
    """A batch's state, by OpenAI's name."""

    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


FOLLOWING: Mapping[Status, frozenset[Status]] = {
    Status.VALIDATING: frozenset(
        (Status.FAILED, Status.IN_PROGRESS, Status.CANCELLING, Status.EXPIRED)
    ),
    Status.IN_PROGRESS: frozenset((Status.FINALIZING, Status.CANCELLING)),
    # Its output is written: it completes, or expires with what was done in time.
    Status.FINALIZING: frozenset((Status.COMPLETED, Status.EXPIRED)),
    Status.CANCELLING: frozenset((Status.CANCELLED,)),
    Status.FAILED: frozenset(),
    Status.COMPLETED: frozenset(),
    Status.EXPIRED: frozenset(),
    Status.CANCELLED: frozenset(),
}
"""The states that may follow each state."""
ENDED = frozenset(status for status, following in FOLLOWING.items() if not following)
"""Final states."""
SEALING = frozenset((Status.FINALIZING, Status.CANCELLING))
"""States in which no more answers are taken and the output is written."""


class IllegalTransition(Exception):
    """A batch cannot go from its state to the one that was asked for."""


@dataclass(frozen=True, slots=True)
class Counts:
    """A batch's requests: all of them, and those that succeeded or failed."""

    total: int = 0
    completed: int = 0
    failed: int = 0

    @property
    def left(self) -> int:
        return self.total - self.completed - self.failed


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch. Methods that change it return a new one, and raise `IllegalTransition` if its
    state does not allow the change."""

    id: str
    tenant: str
    """Name of the tenant that owns the batch; "" if no API key is needed."""
    input_file_id: str
    endpoint: str
    completion_window: str
    created_unix_s: int
    expires_unix_s: int
    metadata: dict[str, str] | None = None
    output_expires_s: int = 0
    """The lifetime of its output files in seconds; 0: that of all files."""
    status: Status = Status.VALIDATING
    reached_unix_s: dict[str, int] = field(default_factory=dict)
    """When it entered each state."""
    model: str | None = None
    counts: Counts = Counts()
    usage: TokenUsage = NO_USAGE
    errors: tuple[LineError, ...] = ()
    output_file_id: str | None = None
    error_file_id: str | None = None
    expired: bool = False
    """Whether its time ran out before all of its requests had ended."""

    def validated(self, total: int, model: str, now_unix_s: int) -> Self:
        """The batch after its input was found valid."""
        assert total > 0, "an empty file is an error"
        begun = self._to(Status.IN_PROGRESS, now_unix_s)
        return replace(begun, counts=Counts(total=total), model=model)

    def refused(self, errors: tuple[LineError, ...], now_unix_s: int) -> Self:
        """The batch after `errors` were found in its input."""
        assert errors, "what is refused has a reason"
        return replace(self._to(Status.FAILED, now_unix_s), errors=errors)

    def answered(self, completed: int, failed: int, usage: TokenUsage) -> Self:
        """The batch after more of its requests have ended."""
        if self.status is not Status.IN_PROGRESS:
            raise IllegalTransition(f"a batch that is {self.status} takes no answers")
        counts = self.counts
        more = Counts(counts.total, counts.completed + completed, counts.failed + failed)
        assert more.left >= 0, "more requests ended than there are"
        return replace(self, counts=more, usage=self.usage + usage)

    def finished(self, now_unix_s: int) -> Self:
        """The batch after all of its requests have ended."""
        assert self.counts.left == 0, "requests are left"
        return self._to(Status.FINALIZING, now_unix_s)

    def timed_out(self, now_unix_s: int) -> Self:
        """The batch after its time has run out; finished requests are kept."""
        if self.status is Status.VALIDATING:
            return replace(self._to(Status.EXPIRED, now_unix_s), expired=True)
        return replace(self._to(Status.FINALIZING, now_unix_s), expired=True)

    def cancel(self, now_unix_s: int) -> Self:
        """The batch after its owner has cancelled it; finished requests are kept."""
        return self._to(Status.CANCELLING, now_unix_s)

    def sealed(self, output: str | None, error: str | None, now_unix_s: int) -> Self:
        """The batch after its output was written to these files; None: nothing to write."""
        if self.status is Status.CANCELLING:
            end = Status.CANCELLED
        else:
            end = Status.EXPIRED if self.expired else Status.COMPLETED
        done = self._to(end, now_unix_s)
        # Requests that had not ended are in the error file and count as failed.
        counts = replace(self.counts, failed=self.counts.failed + self.counts.left)
        return replace(done, counts=counts, output_file_id=output, error_file_id=error)

    def _to(self, status: Status, now_unix_s: int) -> Self:
        if status not in FOLLOWING[self.status]:
            raise IllegalTransition(f"a batch that is {self.status} cannot become {status}")
        reached = {**self.reached_unix_s, status.value: now_unix_s}
        return replace(self, status=status, reached_unix_s=reached)

    def shown(self) -> dict[str, Any]:
        """The batch as OpenAI's API shows it."""
        at = self.reached_unix_s.get
        errors = None
        if self.errors:
            errors = {"object": "list", "data": [asdict(error) for error in self.errors]}
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "model": self.model,
            "errors": errors,
            "input_file_id": self.input_file_id,
            "completion_window": self.completion_window,
            "status": self.status.value,
            "output_file_id": self.output_file_id,
            "error_file_id": self.error_file_id,
            "created_at": self.created_unix_s,
            "in_progress_at": at("in_progress"),
            "expires_at": self.expires_unix_s,
            "finalizing_at": at("finalizing"),
            "completed_at": at("completed"),
            "failed_at": at("failed"),
            "expired_at": at("expired"),
            "cancelling_at": at("cancelling"),
            "cancelled_at": at("cancelled"),
            "request_counts": asdict(self.counts),
            "usage": self.usage.shown(),
            "metadata": self.metadata,
        }

    def document(self) -> dict[str, Any]:
        """The whole batch in JSON's types; `from_document` reads it again."""
        return asdict(self)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """The batch that `document` was made from."""
        known = dict(document)
        known["status"] = Status(known["status"])
        known["counts"] = Counts(**known["counts"])
        known["usage"] = TokenUsage(**known["usage"])
        known["errors"] = tuple(LineError(**error) for error in known["errors"])
        return cls(**known)
