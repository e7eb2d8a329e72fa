"""Pages that take long to make."""

from foretell.services.scheduler.http.costly import CostlyPages
from foretell.services.scheduler.http1.response import Response


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
    now_s[0] = 0.51
    assert pages.page("a", make).body == b"3"
    took_s[0] = 0.0004
    assert [pages.page("c", make).body for _ in range(2)] == [b"4", b"5"], "it is made each time"
