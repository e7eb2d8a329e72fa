"""Offline work is released only while online requests are predicted to be served in time."""

from math import inf

import pytest

from foretell.batch.release import (
    CANDIDATES,
    LARGEST_WINDOW,
    ONLINE_FOR_S,
    UNKNOWN_WINDOW,
    InstanceView,
    OnlineSeen,
    Release,
    Spacing,
)

STEP_S = 0.02


def busy_s(requests: int) -> float:
    """The TTFT at an engine whose steps take longer with more requests."""
    return STEP_S * (1.0 + requests / 100)


def look(release: Release, online: int = 0, **more: int) -> None:
    """Observe one engine that has all that may be sent to it, and this many online requests."""
    sent = release.window
    requests = online + sent
    release.observe({"a": InstanceView(True, 0, busy_s(requests), requests, **more)}, sent)


def grown(release: Release, rounds: int = 300, online: int = 0) -> Release:
    for _ in range(rounds):
        look(release, online)
    return release


def test_it_fills_engines_while_no_online_requests_are_expected() -> None:
    release, quiet = Release(), Release()
    for _ in range(300):
        look(release, 0, max_num_seqs=256)
        sent = quiet.window
        seen = {"a": InstanceView(True, 0, busy_s(sent), sent, max_num_seqs=256)}
        quiet.observe(seen, sent, expects_online=False)
    assert quiet.window == 230
    assert 20 < release.window < 100
    for _ in range(30):
        look(quiet, max_num_seqs=256)
    assert quiet.window < 100, "it gives way when some are"


def test_a_target_holds_who_is_expected() -> None:
    release = Release(2 * STEP_S)
    for _ in range(300):
        sent = release.window
        release.observe(
            {"a": InstanceView(True, 0, busy_s(sent), sent)}, sent, expects_online=False
        )
    assert release.window <= 95


def test_online_requests_are_expected_for_a_while_after_the_last() -> None:
    online = OnlineSeen()
    assert online.expected("a", 7, 0.0), "what came before the first look is not known"
    assert online.expected("a", 7, ONLINE_FOR_S - 1)
    assert not online.expected("a", 7, ONLINE_FOR_S)
    assert online.expected("b", 0, ONLINE_FOR_S + 1), "another replica may have had some"
    assert not online.expected("a", 7, 3 * ONLINE_FOR_S)
    assert online.expected("b", 1, 3 * ONLINE_FOR_S)
    assert online.expected("a", 7, 3 * ONLINE_FOR_S + 1)


def test_it_grows_while_online_requests_are_in_time_and_not_beyond() -> None:
    release = Release(2 * STEP_S)
    windows = [grown(release, 1).window for _ in range(200)]
    assert windows[:40] == sorted(windows[:40])
    assert windows[3] > windows[0]
    # 100 requests would take twice as long; the window stays somewhat below that.
    assert 60 <= windows[-1] <= 95
    assert max(windows) <= 100


def test_it_does_not_grow_without_end() -> None:
    assert grown(Release(9 * STEP_S)).window == LARGEST_WINDOW


def test_it_leaves_places_in_the_engine_to_online_requests() -> None:
    release = Release(9 * STEP_S)
    for _ in range(300):
        look(release, max_num_seqs=100)
    assert release.window == 90


def test_a_window_that_is_not_used_does_not_grow() -> None:
    release = grown(Release(1.0), 20)
    before = release.window
    release.observe({"a": InstanceView(True, 0, STEP_S, before // 4)}, before // 4)
    assert release.window == before


def test_it_shrinks_when_a_target_is_predicted_to_be_missed() -> None:
    release = grown(Release(2 * STEP_S))
    before = release.window
    for _ in range(30):
        sent = release.window
        release.observe({"a": InstanceView(True, 0, 4 * STEP_S, sent)}, sent)
    assert release.window < 0.1 * before
    assert grown(release).window > 10, "it comes back"


def test_it_does_not_shrink_again_before_it_could_help() -> None:
    release = grown(Release(2 * STEP_S))
    before = release.window
    for _ in range(30):  # none of the requests that were sent has ended
        release.observe({"a": InstanceView(True, 0, 4 * STEP_S, before)}, before)
    assert 0.5 * before < release.window < before


def test_one_slow_look_is_none() -> None:
    release = grown(Release(2 * STEP_S))
    before = release.window
    release.observe({"a": InstanceView(True, 0, 1.3 * busy_s(before), before)}, before)
    assert release.window > 0.9 * before


def test_it_does_not_grow_while_a_queue_stands() -> None:
    release = grown(Release(1.0), 20)
    before = release.window
    release.observe({"a": InstanceView(True, 9, STEP_S, 16)}, before)
    assert release.window == before
    release.observe({"a": InstanceView(True, 3, STEP_S, 16)}, before)
    assert release.window > before


def test_an_engine_that_chooses_gets_something_to_choose_from() -> None:
    release = Release(1.0)
    running, sent = 20, 0
    for _ in range(20):  # for an engine that does not choose, that would be too late
        sent = release.window
        waiting = max(0, sent - running)
        release.observe(
            {"a": InstanceView(True, waiting, 5.0, min(sent, running), chooses=True)}, sent
        )
    assert waiting == CANDIDATES
    release.observe({"a": InstanceView(True, waiting + 50, 5.0, running, chooses=True)}, sent)
    assert release.window == sent - 50, "online requests wait, too"
    release.observe({"a": InstanceView(False, 0, None, 0, chooses=True)}, sent)
    assert release.window == 0


def test_an_engine_that_chooses_gets_no_more_while_what_it_gets_is_on_its_way() -> None:
    """Requests are sent one by one, long after they were counted as on their way."""
    release = Release()
    on_their_way = at_the_engine = 0
    for _ in range(400):
        at_the_engine = min(at_the_engine + 5, on_their_way)
        seen = {"a": InstanceView(True, at_the_engine, 5.0, 0, chooses=True)}
        release.observe(seen, on_their_way, unsent=on_their_way - at_the_engine)
        on_their_way = max(on_their_way, release.window)
    assert on_their_way == pytest.approx(CANDIDATES, abs=5)


@pytest.mark.parametrize("online", [0, 5, 50])
def test_without_a_target_online_requests_wait_half_as_long_again(online: int) -> None:
    release = grown(Release(inf), 600, online)
    ratio = busy_s(online + release.window) / busy_s(online)
    assert ratio == pytest.approx(1.5, abs=0.08)
    for _ in range(600):  # it stays there: predictions beside the batch are no new measure
        look(release, online)
    assert busy_s(online + release.window) / busy_s(online) == pytest.approx(ratio, abs=0.05)


def test_a_target_that_no_engine_can_meet_does_not_hold_work_back_for_ever() -> None:
    assert grown(Release(STEP_S / 10)).window > 0


def test_what_engines_are_predicted_to_need_may_change() -> None:
    release = grown(Release(inf), online=5)
    for _ in range(600):  # steps have become slower
        sent = release.window
        release.observe({"a": InstanceView(True, 0, 5 * busy_s(5 + sent), 5 + sent)}, sent)
    assert release.window > 0


def test_an_idle_engine_gets_work() -> None:
    release = Release(inf)
    release.observe({"a": InstanceView(True, 0, STEP_S, 0)}, 0)
    assert release.window == 1


def test_each_instance_has_its_own_window() -> None:
    release = Release(1.0)
    release.observe({"a": InstanceView(True), "b": InstanceView(False), "c": InstanceView(True)}, 0)
    assert release.window == 2 * UNKNOWN_WINDOW
    release.observe({"a": InstanceView(True)}, 0)
    assert release.window == UNKNOWN_WINDOW


def test_requests_that_end_together_are_not_replaced_together() -> None:
    spacing = Spacing()
    waits_s = [spacing.wait_s(100, 0.0) for _ in range(5)]
    assert waits_s == pytest.approx([0.0, 0.05, 0.1, 0.15, 0.2]), "nothing is known yet"
    for _ in range(100):
        spacing.ended(2.0)
    waits_s = [spacing.wait_s(100, 10.0) for _ in range(52)]
    # 100 requests of 2 s each: one ends every 20 ms, and all are replaced within 1.6 s.
    assert waits_s[:3] == [0.0] * 3
    assert waits_s[-1] == pytest.approx(49 * 0.016)


def test_spacing_never_holds_a_request_for_long() -> None:
    spacing = Spacing()
    spacing.ended(600.0)
    spacing.wait_s(1, 0.0)
    assert spacing.wait_s(1, 0.0) <= 0.05
