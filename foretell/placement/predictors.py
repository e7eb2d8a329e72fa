"""Which predictors are asked about a request, and what they have told, as candidates."""

from collections.abc import Callable, Mapping, Sequence

from foretell.placement import events as on
from foretell.placement.instances import Instances
from foretell.policy import Candidate
from foretell.policy.shortlist import Known, shortlist


class Predictors:
    """The predictors of the instances: whom to ask, and what is known by their answers.

    `most` are asked for one placement; 0: all. `random` draws uniformly from [0, 1).
    """

    def __init__(self, instances: Instances, most: int, random: Callable[[], float]) -> None:
        self._instances = instances
        self._most = most
        self._random = random

    def near(self, eligible: list[str]) -> list[str]:
        """Those that answer at once, where more are eligible than can be asked.

        Which they are changes as requests are placed, so all get their turn.
        """
        if not self._most or len(eligible) <= self._most:
            return eligible
        followed = self._instances.followed
        near = [each for each in eligible if each in followed]
        return near if len(near) >= self._most else eligible

    def pick(self, among: Sequence[str], affordable: int, now_s: float) -> Sequence[str]:
        """The most promising of these, as many as there is time to predict for; 0: no matter."""
        wanted = min(self._most or len(among), affordable or len(among))
        if len(among) <= wanted:
            return among
        picked = shortlist(among, wanted, lambda key: self._known(key, now_s), self._random)
        for key in picked:
            self._instances[key].shortlisted = True
        return picked

    def _known(self, key: str, now_s: float) -> Known:
        instance = self._instances[key]
        requests = instance.recent_requests(now_s)
        return Known(instance.outstanding, requests, not instance.shortlisted)

    def learn(self, answers: Sequence[on.Answer], now_s: float) -> dict[str, on.Answer]:
        """Note what predictors have told; returns it by instance."""
        instances, said = self._instances, dict[str, on.Answer]()
        for answer in answers:
            instance, load = instances.get(answer.instance_id), answer.load
            if instance is None:
                continue  # removed since it was asked
            said[answer.instance_id] = answer
            if answer.silent:
                instances.silent(instance, now_s)
                continue
            instances.heard(instance, load, now_s)
        return said

    def candidates(
        self, asked: Sequence[str], said: Mapping[str, on.Answer], now_s: float
    ) -> list[Candidate]:
        """Those of `asked` that are still there, each with what it said, or its last known load."""
        found = []
        for key in asked:
            instance = self._instances.get(key)
            if instance is None:
                continue  # removed since it was asked
            answer = said.get(key)
            load, prediction = (answer.load, answer.prediction) if answer else (None, None)
            if load is None and instance.load is not None:
                load = instance.recent_load(now_s)
            sent = instance.dispatched_last_minute(now_s)
            found.append(Candidate(key, instance.outstanding, sent, load, prediction))
        return found


def is_missing(answer: on.Answer | None, loads_only: bool) -> bool:
    """Whether a predictor did not tell what was wanted of it."""
    return answer is None or (answer.load if loads_only else answer.prediction) is None
