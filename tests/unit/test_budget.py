"""Predictions for offline requests cost online requests nothing."""

from foretell.model import OFFLINE_PRIORITY
from foretell.placement.budget import PredictionBudgets, PredictionPlan

ENGINES = 2


def busy_with_offline(budgets: PredictionBudgets) -> None:
    """Ten seconds of a batch: 20 requests a second, each with a prediction that takes 50 ms."""
    for number in range(200):
        now_s = 0.05 * number
        offline = budgets.of(OFFLINE_PRIORITY)
        offline.arrived(now_s)
        plan = offline.plan(ENGINES, now_s)
        offline.took(plan, plan.candidates, 0.05)
        if number % 20 == 0:
            budgets.of(0).arrived(now_s)
            budgets.of(0).took(budgets.of(0).plan(ENGINES, now_s), ENGINES, 0.004)


def test_online_requests_are_predicted_for_whatever_a_batch_sends() -> None:
    budgets = PredictionBudgets()
    busy_with_offline(budgets)
    assert budgets.of(0).plan(ENGINES, 10.05) == PredictionPlan(ENGINES, single=False)


def test_offline_requests_are_predicted_for_as_far_as_there_is_time() -> None:
    budgets = PredictionBudgets()
    busy_with_offline(budgets)
    offline = budgets.of(OFFLINE_PRIORITY)
    offline.arrived(10.05)
    assert offline.plan(ENGINES, 10.05).candidates == 0
    offline.arrived(40.0)
    assert offline.plan(ENGINES, 40.0).candidates == ENGINES
