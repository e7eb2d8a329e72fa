from policy_cases import REQUEST, loaded, silent

from foretell.policy.baselines import RandomPolicy


def test_draw_decides_uniformly() -> None:
    candidates = [silent("a"), silent("b"), silent("c")]
    chosen = [RandomPolicy().choose(REQUEST, candidates, i / 300) for i in range(300)]
    assert [chosen.count(i) for i in "abc"] == [100, 100, 100]


def test_load_and_silence_do_not_matter() -> None:
    candidates = [loaded("a", 900, 50, outstanding=50), silent("b")]
    assert RandomPolicy().choose(REQUEST, candidates, 0.0) == "a"
    assert RandomPolicy().choose(REQUEST, candidates, 0.999999) == "b"


def test_single_candidate() -> None:
    assert RandomPolicy().choose(REQUEST, [silent("a")], 0.999999) == "a"
