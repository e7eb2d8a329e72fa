"""Offline work is released only while it is foretold that online requests are served in time."""

from math import inf

import pytest

from foretell.batch.release import (
    CANDIDATES,
    LARGEST_WINDOW,
    UNKNOWN_WINDOW,
    Release,
    Seen,
    Spacing,
)

IDLE_S = 0.02


def grown(release: Release, rounds: int = 50) -> Release:
    for _ in range(rounds):
        release.observe({"a": Seen(True, 0, IDLE_S)}, release.window)
    return release


def test_it_grows_while_nobody_is_delayed_and_not_without_end() -> None:
    release = Release(1.0)
    windows = [grown(release, 1).window for _ in range(200)]
    assert windows == sorted(windows)
    assert windows[3] > windows[0]
    assert windows[-1] == LARGEST_WINDOW


def test_a_window_that_is_not_used_does_not_grow() -> None:
    release = grown(Release(1.0))
    before = release.window
    release.observe({"a": Seen(True, 0, IDLE_S)}, before // 4)
    assert release.window == before


def test_it_shrinks_when_a_target_is_foretold_to_be_missed() -> None:
    release = grown(Release(1.0))
    before = release.window
    for _ in range(3):
        release.observe({"a": Seen(True, 0, 1.1, 9)}, before)
    assert release.window < 0.4 * before
    for _ in range(30):
        release.observe({"a": Seen(True, 0, 1.1, 9)}, before)
    assert release.window == 0
    assert grown(release).window > 10, "it comes back"


def test_it_does_not_grow_while_a_queue_stands() -> None:
    release = grown(Release(1.0))
    before = release.window
    release.observe({"a": Seen(True, 9, IDLE_S, 16)}, before)
    assert release.window == before
    release.observe({"a": Seen(True, 3, IDLE_S, 16)}, before)
    assert release.window > before


def test_an_engine_that_chooses_gets_something_to_choose_from() -> None:
    release = Release(1.0)
    running, sent = 20, 0
    for _ in range(20):  # it would be late for everybody, were it not to choose
        sent = release.window
        waiting = max(0, sent - running)
        release.observe({"a": Seen(True, waiting, 5.0, min(sent, running), chooses=True)}, sent)
    assert waiting == CANDIDATES
    release.observe({"a": Seen(True, waiting + 50, 5.0, running, chooses=True)}, sent)
    assert release.window == sent - 50, "online requests wait, too"
    release.observe({"a": Seen(False, 0, None, 0, chooses=True)}, sent)
    assert release.window == 0


def test_without_a_target_an_idle_engine_is_the_measure() -> None:
    release = grown(Release(inf))
    before = release.window
    release.observe({"a": Seen(True, 0, 3 * IDLE_S)}, before)
    assert release.window < before


def test_a_target_that_no_engine_can_meet_does_not_hold_work_back_for_ever() -> None:
    release = Release(IDLE_S / 10)
    assert grown(release).window > 10


def test_what_an_idle_engine_is_foretold_to_need_may_change() -> None:
    release = grown(Release(inf))
    for _ in range(30):
        release.observe({"a": Seen(True, 0, 5 * IDLE_S, 3)}, release.window)
    assert release.window == 0
    for _ in range(30):
        release.observe({"a": Seen(True, 0, 5 * IDLE_S, 0)}, release.window)
    assert release.window > 10


def test_each_instance_has_its_own_window() -> None:
    release = Release(1.0)
    release.observe({"a": Seen(True), "b": Seen(False), "c": Seen(True)}, 0)
    assert release.window == 2 * UNKNOWN_WINDOW
    release.observe({"a": Seen(True)}, 0)
    assert release.window == UNKNOWN_WINDOW


def test_requests_that_end_together_are_not_replaced_together() -> None:
    spacing = Spacing()
    assert [spacing.wait_s(100, 0.0) for _ in range(3)] == [0.0] * 3, "nothing is known yet"
    for _ in range(100):
        spacing.ended(2.0)
    waits_s = [spacing.wait_s(100, 10.0) for _ in range(52)]
    # 100 of 2 s each: one ends every 20 ms, so that all are replaced within 1.6 s.
    assert waits_s[:3] == [0.0] * 3
    assert waits_s[-1] == pytest.approx(49 * 0.016)


def test_spacing_never_holds_a_request_for_long() -> None:
    spacing = Spacing()
    spacing.ended(600.0)
    spacing.wait_s(1, 0.0)
    assert spacing.wait_s(1, 0.0) <= 0.05
