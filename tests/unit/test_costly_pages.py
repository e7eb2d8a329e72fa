"""Pages that take long to create."""

from foretell.http1.response import Response
from foretell.services.http.costly import CostlyPages


def test_a_page_takes_a_share_of_the_time_however_many_ask() -> None:
    now_s, took_s, made = [0.0], [0.1], [0]

    def make() -> Response:
        now_s[0] += took_s[0]
        made[0] += 1
        return Response(200, b"%d" % made[0])

    pages = CostlyPages(lambda: now_s[0])
    shown = [pages.page("a", make).body for _ in range(3)]
    assert shown == [b"1"] * 3
    assert pages.page("b", make).body == b"2", "that of another name"
    now_s[0] = 0.24
    assert pages.page("a", make).body == b"1"
    now_s[0] = 0.26
    assert pages.page("a", make).body == b"3"


def test_a_page_that_is_asked_for_now_and_then_is_new() -> None:
    now_s, made = [0.0], [0]

    def make() -> Response:
        now_s[0] += 0.01
        made[0] += 1
        return Response(200, b"%d" % made[0])

    pages = CostlyPages(lambda: now_s[0])
    assert [pages.page("a", make).body for _ in range(5)] == [b"1", b"2", b"3", b"4", b"5"]
    now_s[0] += 10.0
    assert pages.page("a", make).body == b"6"
