"""The forecast of arrivals: level, trend, time of day, and a margin that holds."""

from random import Random

import pytest

from foretell.provision.arrivals import ArrivalForecast


def poisson(draws: Random, mean: float) -> int:
    """A count whose mean is `mean`."""
    count, left = 0, draws.expovariate(1.0)
    while left < mean:
        count, left = count + 1, left + draws.expovariate(1.0)
    return count


def test_a_constant_rate_goes_on() -> None:
    forecast = ArrivalForecast()
    for tick in range(60):
        forecast.observe(10.0 * tick, 50)
    assert forecast.rate(590.0) == pytest.approx(5.0)
    assert forecast.mean(590.0, 300.0) == pytest.approx(5.0)
    assert forecast.dispersion() == 1.0


def test_half_of_a_trend_goes_on() -> None:
    forecast = ArrivalForecast()
    for tick in range(61):
        forecast.observe(10.0 * tick, 100 + tick)  # 0.01 requests/s more a second
    level = forecast.rate(600.0)
    assert forecast.mean(600.0, 200.0) == pytest.approx(level + 1.0, rel=0.01)


def test_a_day_that_was_seen_says_when_the_rate_will_rise() -> None:
    forecast = ArrivalForecast(day_s=14_400.0)
    for tick in range(2160):  # a day and a half; the rate is three times as high from noon on
        forecast.observe(10.0 * tick, 30 if tick % 1440 < 720 else 90)
    now_s = 10.0 * 2159
    assert forecast.mean(now_s, 60.0) > 6.0
    assert forecast.mean(now_s, 300.0) == pytest.approx(9.0, rel=0.2)


def test_bursts_widen_the_margin() -> None:
    draws = Random(1)
    calm, bursty = ArrivalForecast(), ArrivalForecast()
    for tick in range(300):
        calm.observe(10.0 * tick, poisson(draws, 50.0))
        bursty.observe(10.0 * tick, 10 * poisson(draws, 5.0))
    assert 1.0 <= calm.dispersion() < 2.0
    assert 6.0 < bursty.dispersion() < 16.0
    assert bursty.upper(2990.0, 60.0, 60.0, 0.9) > 1.1 * calm.upper(2990.0, 60.0, 60.0, 0.9)


def test_what_came_over_what_was_predicted_becomes_the_margin() -> None:
    """The share of coming windows that stay below the upper rate is about the confidence."""
    draws, forecast = Random(2), ArrivalForecast()
    rates, uppers = [], []
    for tick in range(1500):
        surge = 1.8 if (tick // 30) % 5 == 0 else 1.0  # a fifth of the time, without warning
        arrived = poisson(draws, 50.0 * surge)
        rates.append(arrived / 10.0)
        forecast.observe(10.0 * tick, arrived)
        uppers.append(forecast.upper(10.0 * tick, 120.0, 60.0, 0.9) if tick else 0.0)
    windows = range(600, 1480)
    kept = [uppers[t - 12] >= sum(rates[t : t + 6]) / 6 for t in windows]
    assert 0.85 < sum(kept) / len(kept) < 0.99


def test_errors_of_a_far_forecast_do_not_widen_the_one_for_now() -> None:
    forecast = ArrivalForecast()
    for tick in range(400):
        now_s = 10.0 * tick
        forecast.observe(now_s, 50 if tick // 40 % 2 else 100)  # a step that no trend predicts
        for ahead_s in (0.0, 900.0):
            forecast.upper(now_s, ahead_s, 60.0, 0.7)
    now, later = (
        forecast.upper(3990.0, ahead_s, 60.0, 0.7) / forecast.mean(3990.0, ahead_s)
        for ahead_s in (0.0, 900.0)
    )
    assert now < 1.1
    assert later > 1.5


def test_nothing_is_said_of_what_was_never_counted() -> None:
    forecast = ArrivalForecast()
    assert not forecast.known
    forecast.observe(0.0, 5)
    assert not forecast.known  # the time since when they were counted is unknown
    assert forecast.upper(0.0, 60.0, 60.0, 0.9) == 0.0


def test_spans_of_other_lengths_are_no_bursts() -> None:
    forecast = ArrivalForecast()
    for at_s, arrived in [(100.0 * i, 500) for i in range(8)] + [
        (700.0 + 10.0 * i, 50) for i in range(1, 9)
    ]:
        forecast.observe(at_s, arrived)
    assert forecast.dispersion() == 1.0


def test_a_surge_has_no_margin_for_another_one_on_top() -> None:
    draws, forecast = Random(3), ArrivalForecast()
    uppers = []
    for tick in range(1000):
        surge = 2.0 if tick // 20 % 6 == 5 else 1.0  # 200 s of every 20 minutes
        forecast.observe(10.0 * tick, poisson(draws, 50.0 * surge))
        uppers.append(forecast.upper(10.0 * tick, 60.0, 60.0, 0.97))
    assert 8.0 < uppers[935] < 14.0  # a surge may come
    assert 8.0 < uppers[955] < 14.0  # it has come, and does not announce one four times as high
