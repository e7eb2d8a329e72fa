"""Simulated clusters whose instances come and go, from options."""

from typing import Any

from foretell.provision import ProvisionConfig, Strategy
from foretell.provision.strategies import make_strategy
from foretell.sim import Provisioning, Report
from foretell.tools.simulate.options import ProvisionOptions, SimulateOptions

_DIGITS = 4


def provisioning_of(options: SimulateOptions, given: ProvisionOptions) -> Provisioning | None:
    """What the options ask for; ValueError where they contradict each other."""
    if not given.provision:
        return None
    if len(options.engines) != 1:
        raise ValueError("--provision goes with one profile")
    config = ProvisionConfig(
        minimum=given.min_instances, maximum=options.instances, cold_start_s=given.cold_start_s
    )

    def strategy() -> Strategy:
        targets = {"ttft_s": options.ttft_slo_s, "tpot_s": options.tpot_slo_s}
        wants = given.provision == "foresight"
        chosen = {name: value for name, value in targets.items() if value and wants}
        return make_strategy(given.provision, **chosen)

    strategy()  # an unknown name is refused before anything is simulated
    return Provisioning(strategy, config, given.min_instances, given.cold_start_s)


def provisioned(report: Report) -> dict[str, Any]:
    """What came of it: instance-hours up to the last arrival, and steps."""
    sizes = report.sizes
    return {
        "instance_hours": round(report.instance_s / 3600.0, _DIGITS),
        "instances": {
            "first": sizes[0].instances,
            "most": max(size.instances for size in sizes),
            "last": sizes[-1].instances,
        },
        "started": sum(decision.start for decision in report.decisions),
        "drained": sum(len(decision.drain) for decision in report.decisions),
    }
