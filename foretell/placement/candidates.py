"""The candidates of a placement, and what is known of each."""

from collections.abc import Callable, Sequence

from foretell.placement.instances import Instances
from foretell.placement.ports import Answer
from foretell.policy import Candidate
from foretell.policy.shortlist import Known, shortlist

MOST_FOLLOWED = 64
"""Most instances of which a scheduler has snapshots at a time; in a larger pool they are replaced
in turn."""


class Candidates:
    """Selects candidates among the instances, and stores their latest loads.

    At most `most` are compared for one placement; 0: all. `random` draws uniformly from [0, 1).
    """

    def __init__(self, instances: Instances, most: int, random: Callable[[], float]) -> None:
        self._instances = instances
        self._most = most
        self._random = random

    def known(self, eligible: list[str]) -> list[str]:
        """Return the followed ones if more are eligible than may be compared or followed.

        Which ones are followed changes as requests are placed, so all get their turn. Where all
        can be followed, those without snapshots remain candidates.
        """
        if not self._most or len(eligible) <= max(self._most, MOST_FOLLOWED):
            return eligible
        followed = self._instances.followed
        known = [each for each in eligible if each in followed]
        return known if len(known) >= self._most else eligible

    def pick(self, among: Sequence[str], affordable: int, now_s: float) -> Sequence[str]:
        """Return the most promising of these, `affordable` at most; 0: no such limit."""
        wanted = min(self._most or len(among), affordable or len(among))
        if len(among) <= wanted:
            return among
        picked = shortlist(among, wanted, lambda key: self._load_of(key, now_s), self._random)
        for key in picked:
            self._instances[key].shortlisted = True
        return picked

    def _load_of(self, key: str, now_s: float) -> Known:
        instance = self._instances[key]
        requests = instance.recent_requests(now_s)
        return Known(instance.outstanding, requests, not instance.shortlisted)

    def of(
        self, instance_ids: Sequence[str], answers: Sequence[Answer], now_s: float
    ) -> list[Candidate]:
        """Return a candidate for each instance, with its answer or its last known load."""
        found, known = [], {answer.instance_id: answer for answer in answers}
        for key in instance_ids:
            instance, answer = self._instances[key], known.get(key)
            load = prediction = None
            if answer is not None and answer.load is not None:
                load, prediction = answer.load, answer.prediction
                self._instances.heard(instance, load, now_s)
            elif instance.load is not None:
                load = instance.recent_load(now_s)
            sent = instance.dispatched_last_minute(now_s)
            found.append(Candidate(key, instance.outstanding, sent, load, prediction))
        return found
