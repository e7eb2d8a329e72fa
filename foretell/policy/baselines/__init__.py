"""Policies for comparison: published baselines and experiments, for simulator and benchmarks.

A cluster file names one of them as `baselines.<name>`; everything else by its own name.
"""

from foretell.policy.discovery import policies_in

BASELINES = policies_in(__name__, __path__)
