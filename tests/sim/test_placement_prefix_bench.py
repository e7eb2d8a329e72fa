"""How other gateways use prefixes, as the yardstick models it."""

from bench.placement.prefix_baselines import LongestMatch, PrefixHash
from foretell.model import EngineConfig, LengthEstimate, RequestSpec
from foretell.policy import Candidate


def request(topic: int, chunks: int = 4) -> RequestSpec:
    prefix = tuple(range(10 * topic, 10 * topic + chunks))
    tokens = 100 * chunks + 1
    return RequestSpec(
        "r", tokens, 0, LengthEstimate(1.0), prefix=prefix, prefix_chunk_tokens=100.0
    )


def candidates(*outstanding: int) -> list[Candidate]:
    return [Candidate(f"e{i}", count, 0, None, None) for i, count in enumerate(outstanding)]


def test_a_hashed_prefix_keeps_its_instance_until_that_has_too_much() -> None:
    policy = PrefixHash()
    places = {policy.choose(request(topic), candidates(0, 0, 0), 0.0) for topic in range(30)}
    assert places == {"e0", "e1", "e2"}
    usual = policy.choose(request(1), candidates(0, 0, 0), 0.0)
    assert usual == policy.choose(request(1, chunks=3), candidates(4, 4, 4), 0.9)
    crowded = [9 if f"e{i}" == usual else 1 for i in range(3)]
    assert policy.choose(request(1), candidates(*crowded), 0.0) != usual
    assert policy.choose(request(1, chunks=0), candidates(2, 1, 2), 0.0) == "e1"


def test_the_longest_match_wins_unless_loads_are_uneven() -> None:
    policy = LongestMatch(EngineConfig("m", 16, 1000, 8, 512, 4096))
    assert policy.choose(request(1), candidates(1, 0, 1), 0.0) == "e1"
    assert policy.choose(request(1), candidates(0, 8, 0), 0.0) == "e1"
    assert policy.choose(request(2), candidates(0, 8, 1), 0.0) == "e0"
    assert policy.choose(request(1), candidates(0, 9, 1), 0.0) == "e0"
