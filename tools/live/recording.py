"""One measurement as a file: the times and the prediction of every request, and every snapshot.

A zip archive of `about.json`, `requests.jsonl` and, if snapshots were recorded, `snapshots.bin`:
the messages as published, each after its length (4 bytes, little-endian). From these the
predictor's whole state at every prediction can be reconstructed, to test other hypotheses on the
same run.
"""

import json
import struct
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

_LENGTH = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Served:
    """One request, its prediction and what happened. Times are those of the wall clock."""

    request_id: str
    prompt_tokens: int
    output_tokens: int
    measured: bool
    """False for requests that warm up engine and predictors."""
    asked_unix_s: float
    """When the prediction was started."""
    decided_unix_s: float
    """When the prediction was made and the request was sent; latencies count from here."""
    first_unix_s: float
    last_unix_s: float
    completed_unix_s: float
    """When the predictor was told that the request had ended."""
    predicted_ttft_s: float
    """The prediction; infinite: never."""
    predicted_e2e_s: float
    answer_delay_s: float
    """What a scheduler would add to both: the answer's way back, as learnt until then."""
    snapshot_age_s: float
    calibration_steps: int
    dispatch_delay_s: float = 0.0
    engine_ttft_s: float = 0.0
    """The TTFT that the predictor saw in snapshots; 0: it did not see it."""
    max_tokens: int = 0
    """The request's limit of tokens if its length was secret; 0: the length was known."""
    expected_tokens: float = 0.0
    """The expected length at the time of the prediction, like `quantiles`."""
    quantiles: tuple[tuple[float, float], ...] = ()
    """(level, tokens), as in `LengthEstimate`."""

    @property
    def ttft_s(self) -> float:
        return self.first_unix_s - self.decided_unix_s

    @property
    def e2e_s(self) -> float:
        return self.last_unix_s - self.decided_unix_s

    @property
    def tpot_s(self) -> float:
        """Mean time of a token after the first."""
        return (self.last_unix_s - self.first_unix_s) / max(1, self.output_tokens - 1)

    @property
    def predicted_tpot_s(self) -> float:
        """The TPOT that follows from the two predictions and the expected length."""
        tokens = self.expected_tokens or float(self.output_tokens)
        return (self.predicted_e2e_s - self.predicted_ttft_s) / max(1.0, tokens - 1.0)


@dataclass(frozen=True, slots=True)
class Recording:
    """A whole measurement."""

    about: dict[str, Any]
    requests: list[Served]
    """In order of their predictions."""
    snapshots: list[bytes] = field(default_factory=list)

    def write(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        partial = path.with_name(f"{path.name}.part")
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("about.json", json.dumps(self.about, indent=2))
            lines = (json.dumps(asdict(request)) for request in self.requests)
            archive.writestr("requests.jsonl", "\n".join(lines))
            if self.snapshots:
                archive.writestr("snapshots.bin", b"".join(_framed(self.snapshots)))
        partial.replace(path)

    @classmethod
    def read(cls, path: Path) -> "Recording":
        """Read a recording; ValueError with the reason if `path` holds none."""
        try:
            with zipfile.ZipFile(path) as archive:
                lines = archive.read("requests.jsonl").splitlines()
                framed = b""
                if "snapshots.bin" in archive.namelist():
                    framed = archive.read("snapshots.bin")
                return cls(
                    json.loads(archive.read("about.json")),
                    [_served(json.loads(line)) for line in lines],
                    list(_unframed(framed)),
                )
        except (
            OSError,
            KeyError,
            ValueError,
            TypeError,
            struct.error,
            zipfile.BadZipFile,
        ) as error:
            raise ValueError(f"{path} holds no recording: {error!r}") from error


def _served(row: dict[str, Any]) -> Served:
    quantiles = tuple((level, tokens) for level, tokens in row.pop("quantiles", ()))
    return Served(**row, quantiles=quantiles)


def _framed(messages: Iterable[bytes]) -> Iterator[bytes]:
    for message in messages:
        yield _LENGTH.pack(len(message))
        yield message


def _unframed(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size + length
        if at > len(data):
            raise ValueError("snapshots.bin is cut off")
        yield data[at - length : at]
