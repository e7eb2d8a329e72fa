"""The latest placements of this replica, kept so that each of them can be explained."""

from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from foretell.engine.hindsight import Exposure, Scene
from foretell.placement.decision import Decision

MOST_STORIES = 1000
"""Requests that are remembered."""
MOST_SNAPSHOT_BYTES = 16 << 20
"""Bytes of the engines' snapshots that are remembered with the latest of them."""
_ARRIVAL_BYTES = 1000
"""A request on its way takes about so many."""


@dataclass(slots=True)
class Ended:
    """What became of one attempt. Latencies are seconds since it was placed, 0 where not known."""

    status: int
    """The engine's HTTP status; 0 if it sent none."""
    finished: bool
    """The whole answer came from the engine."""
    broken: bool
    """The engine was lost in mid-answer."""
    continued: bool
    """It went on with what another engine had begun."""
    ttft_s: float
    e2e_s: float
    prompt_tokens: int
    """0 where not known."""
    output_tokens: int
    """Those of all its sequences; 0 where not known."""

    def tpot_s(self, sequences: int) -> float:
        """Mean seconds of a token after the first; 0 where there was only one."""
        return (self.e2e_s - self.ttft_s) / max(1.0, self.output_tokens / sequences - 1)


@dataclass(slots=True, eq=False)
class Chapter:
    """One attempt: how it was placed, and what became of it."""

    decision: Decision
    scene: Scene | None
    """What its predictions were made from; None where nothing was predicted, or too long ago."""
    policy: str
    attempt: int
    instance_id: str
    emulated: bool
    placed_unix_s: float
    took_s: float
    """To decide."""
    ended: Ended | None = None
    """None while it is in progress."""


@dataclass(slots=True, eq=False)
class Story:
    """One request and its attempts, in their order."""

    request_id: str
    """The one that its client knows."""
    model_name: str
    chapters: list[Chapter] = field(default_factory=list)


class Stories:
    """The latest requests that were placed. What is kept are references, formatted when asked."""

    def __init__(self, most: int = MOST_STORIES, most_bytes: int = MOST_SNAPSHOT_BYTES) -> None:
        self._stories: deque[Story] = deque(maxlen=most)
        self._most_bytes = most_bytes
        self._scenes: deque[tuple[Chapter, int]] = deque()
        """Chapters with scenes, each with the bytes that the one before did not have."""
        self._bytes = 0
        self._latest: Collection[Exposure] = ()

    def __len__(self) -> int:
        return len(self._stories)

    @property
    def snapshot_bytes(self) -> int:
        """Bytes of the snapshots that are remembered, about."""
        return self._bytes

    def add(self, story: Story, chapter: Chapter) -> None:
        """An attempt of a request has been placed."""
        if not story.chapters:
            self._stories.append(story)
        story.chapters.append(chapter)
        if chapter.scene is not None:
            self._keep(chapter, chapter.scene)

    def latest(self) -> Iterator[Story]:
        """All that are remembered, the latest first. Nothing may be added meanwhile."""
        return reversed(self._stories)

    def find(self, request_id: str) -> Story | None:
        """The latest request of that id; None where it is not remembered."""
        return next((s for s in self.latest() if s.request_id == request_id), None)

    def _keep(self, chapter: Chapter, scene: Scene) -> None:
        """Forget the oldest scenes where there are too many bytes."""
        before = {id(exposure.snapshot) for exposure in self._latest}
        added = sum([_bytes(e) for e in scene.exposures if id(e.snapshot) not in before])
        self._latest = scene.exposures
        self._scenes.append((chapter, added))
        self._bytes += added
        while self._bytes > self._most_bytes or len(self._scenes) > (self._stories.maxlen or 0):
            oldest, size = self._scenes.popleft()
            oldest.scene = None
            self._bytes -= size


def _bytes(exposure: Exposure) -> int:
    snapshot = exposure.snapshot
    return len(snapshot.requests) + _ARRIVAL_BYTES * len(snapshot.reservations)
