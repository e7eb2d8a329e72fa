"""Latency targets from headers and settings, and whether an answer met them."""

from math import inf

import pytest

from foretell.model import NO_SLO, Slo
from foretell.openai.errors import ApiError
from foretell.openai.slo import (
    NO_TERMS,
    SloUnattainable,
    Terms,
    default_terms,
    terms_of,
)
from foretell.policy.admission import Unattainable

TTFT, TPOT, LATE = (
    "x-foretell-ttft-target-ms",
    "x-foretell-tpot-target-ms",
    "x-foretell-when-late",
)
STRICT = default_terms(500.0, 80.0, "reject")


def test_headers_beat_settings_and_0_is_none() -> None:
    assert terms_of({}, NO_TERMS, 0.0).slo == NO_SLO
    assert terms_of({}, STRICT, 0.0).slo == Slo(0.5, 0.08)
    assert terms_of({}, STRICT, 0.0).late == "reject"
    found = terms_of({TTFT: "1500", TPOT: "62.5", LATE: "serve"}, STRICT, 0.0)
    assert (found.slo, found.late) == (Slo(1.5, 0.0625), "serve")
    assert terms_of({TTFT: "0"}, STRICT, 0.0).slo == Slo(inf, 0.08)
    assert default_terms(0.0, 0.0, "serve").slo == NO_SLO


def test_the_names_of_llm_d_are_understood() -> None:
    new = {"x-llm-d-slo-ttft-ms": "300", "x-llm-d-slo-tpot-ms": "30"}
    old = {"x-slo-ttft-ms": "400", "x-slo-tpot-ms": "40"}
    assert terms_of(new, STRICT, 0.0).slo == Slo(0.3, 0.03)
    assert terms_of(old, STRICT, 0.0).slo == Slo(0.4, 0.04)
    assert terms_of({**old, **new, TTFT: "200"}, STRICT, 0.0).slo == Slo(0.2, 0.03)
    with pytest.raises(ApiError, match="x-slo-ttft-ms"):
        terms_of({"x-slo-ttft-ms": "soon"}, STRICT, 0.0)


@pytest.mark.parametrize("header", [TTFT, TPOT])
@pytest.mark.parametrize(
    "text", ["", "soon", "-1", "nan", "inf", "1e3", "1_0", "9" * 400, "\u0665"]
)
def test_what_is_no_number_of_milliseconds_is_named(header: str, text: str) -> None:
    with pytest.raises(ApiError) as caught:
        terms_of({header: text}, NO_TERMS, 0.0)
    assert (caught.value.status, caught.value.param) == (400, header)


@pytest.mark.parametrize("text", ["", "Reject", "never"])
def test_nor_is_there_another_way_to_be_late(text: str) -> None:
    with pytest.raises(ApiError) as caught:
        terms_of({LATE: text}, NO_TERMS, 0.0)
    assert (caught.value.status, caught.value.param) == (400, LATE)


def test_an_outcome_counts_from_the_arrival() -> None:
    terms = Terms(Slo(0.5, 0.1), arrived_unix_s=100.0)
    assert terms.outcome(100.25, 101.25, 11.0) == "met"
    assert terms.outcome(100.75, 101.25, 11.0) == "missed"
    assert terms.outcome(100.25, 101.5, 11.0) == "missed"
    assert terms.outcome(100.25, 100.25, 1.0) == "met"


def test_what_is_not_known_has_no_outcome() -> None:
    terms = Terms(Slo(0.5, 0.1), arrived_unix_s=100.0)
    assert terms.outcome(0.0, 101.0, 11.0) is None
    assert terms.outcome(100.25, 101.0, 0.0) is None
    assert Terms(Slo(0.5), arrived_unix_s=100.0).outcome(100.25, 101.0, 0.0) == "met"
    assert Terms(arrived_unix_s=100.0).outcome(100.25, 101.0, 11.0) is None


def test_a_refusal_says_what_was_predicted_from_the_arrival_on() -> None:
    """0.2 s of 0.5 s have passed; another 3 s are predicted."""
    refusal = SloUnattainable(Terms(Slo(0.5)), Unattainable(3.0, target_s=0.3))
    assert (refusal.status, refusal.code) == (429, "slo_unattainable")
    assert "3200 ms" in refusal.message
    assert "500 ms" in refusal.message
    assert refusal.headers == {"retry-after": "3"}
    assert refusal.ttft_s == pytest.approx(3.2)
    assert SloUnattainable(Terms(Slo(0.5)), Unattainable(1e9, 0.5)).headers == {"retry-after": "60"}
