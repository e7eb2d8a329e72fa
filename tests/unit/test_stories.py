"""What a replica remembers of its placements is bounded, and the pictures in it too."""

from types import SimpleNamespace
from typing import Any

from policy_cases import REQUEST, silent

from foretell.placement.decision import Decision
from foretell.services.scheduler.placing.stories import Chapter, Stories, Story


def exposure(size: int) -> Any:
    return SimpleNamespace(picture=SimpleNamespace(requests=bytes(size), reservations=b""))


def placed(stories: Stories, name: str, *exposures: Any) -> Chapter:
    decision = Decision(REQUEST, [silent("a")], 0.0, None, silent("a"))
    scene: Any = SimpleNamespace(exposures=exposures) if exposures else None
    chapter = Chapter(decision, scene, "slo", 1, "a", emulated=False, placed_unix_s=1.0, took_s=0.1)
    stories.add(Story(name, "m"), chapter)
    return chapter


def test_the_latest_requests_are_remembered() -> None:
    stories = Stories(most=3)
    for number in range(5):
        placed(stories, f"r{number}")
    assert len(stories) == 3
    assert [stories.find(f"r{n}") is not None for n in range(5)] == [False, False, True, True, True]


def test_of_requests_with_one_id_the_latest_is_found() -> None:
    stories = Stories()
    placed(stories, "same")
    latest = placed(stories, "same")
    found = stories.find("same")
    assert found is not None
    assert found.chapters == [latest]


def test_attempts_of_one_request_are_one_story() -> None:
    stories = Stories()
    first = placed(stories, "r")
    story = stories.find("r")
    assert story is not None
    stories.add(story, first)
    assert (len(stories), len(story.chapters)) == (1, 2)


def test_shared_pictures_count_once_and_the_oldest_are_forgotten() -> None:
    stories, shared = Stories(most_bytes=1000), exposure(400)
    chapters = [placed(stories, f"r{n}", shared, exposure(100)) for n in range(6)]
    assert stories.picture_bytes == 1000
    assert all(chapter.scene is not None for chapter in chapters)
    chapters.append(placed(stories, "r6", exposure(400), exposure(100)))
    assert stories.picture_bytes == 1000
    assert [chapter.scene is None for chapter in chapters] == [True] + [False] * 6
    huge = placed(stories, "r7", exposure(5000))
    assert huge.scene is None
    assert stories.picture_bytes == 0


def test_no_more_scenes_than_requests_are_remembered() -> None:
    stories = Stories(most=3)
    chapters = [placed(stories, f"r{n}", exposure(10)) for n in range(5)]
    assert [chapter.scene is None for chapter in chapters] == [True, True, False, False, False]
