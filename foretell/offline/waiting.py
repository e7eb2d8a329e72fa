"""Requests that wait to be sent, and what is known of their groups."""

from dataclasses import dataclass

import numpy as np

from foretell.offline.survival import LONGEST, Survival
from foretell.offline.tree import PrefixTree
from foretell.offline.work import Floats, Ints, WorkModel

_LENGTH_BIN = 1.25  # ratio of known lengths that are queued together


@dataclass(frozen=True, slots=True)
class OfflineJob:
    """A file of requests as the controller sees it."""

    tree: PrefixTree
    order: Ints
    """The tree's requests, depth-first."""
    group: Ints
    """(n,): the group of each request, by `lengths.sources`."""
    known: Ints
    """(n,): output tokens, above 0 where they are known."""
    prior_tokens: float
    """Expected length of an answer before any has ended."""
    most_tokens: int = LONGEST
    """No answer is longer."""


class Waiting:
    """The queues of a job's groups, and the lengths of all its answers."""

    def __init__(self, job: OfflineJob, work: WorkModel) -> None:
        self.job = job
        self.group = _groups(job, work)
        """(n,): the group of each request."""
        self.groups = int(self.group.max(initial=0)) + 1
        self.group_list: list[int] = self.group.tolist()
        self.known_list: list[int] = job.known.tolist()
        self.survival = Survival(self.groups, job.prior_tokens)
        known = job.order[job.known[job.order] > 0]
        for request in known.tolist():
            self.survival.ended(self.group_list[request], self.known_list[request])
        self.heard: list[int] = np.bincount(self.group[known], minlength=self.groups).tolist()
        """Answers of each group whose lengths are known."""
        unknown = job.order[job.known[job.order] == 0]
        self.to_learn = np.bincount(self.group[unknown], minlength=self.groups) > 0
        self.queues: list[list[int]] = [[] for _ in range(self.groups)]
        """Waiting requests of each group, the next one last."""
        for request in job.order[::-1].tolist():
            self.queues[self.group_list[request]].append(request)
        tree = job.tree
        self._prompts: list[int] = tree.prompt_tokens.tolist()
        self._own = (tree.depth - tree.begins)[: tree.requests]
        self._compute_s = work.prefill_s(tree.begins, tree.depth)[: tree.requests]
        self.sums = self._totals()
        self._compute_at_first = np.maximum(self.sums[2], 1e-30)

    def take(self, group: int) -> int:
        """Remove and return the next request of a group."""
        request = self.queues[group].pop()
        self.sums[:, group] -= np.array(
            [1.0, self._prompts[request], self._compute_s[request], self._own[request]]
        )
        return request

    def ended(self, request: int, tokens: int) -> None:
        """Learn from an answer that has ended after `tokens` tokens."""
        group = self.group_list[request]
        self.heard[group] += 1
        if not self.known_list[request]:
            self.survival.ended(group, tokens)

    def part_left(self, group: int) -> float:
        """Share of a group's computing that still waits."""
        return float(self.sums[2, group] / self._compute_at_first[group])

    def _totals(self) -> Floats:
        """(4, groups): the number of waiting requests, their prompt tokens, and of their unshared
        tokens the seconds to compute them and the number."""
        order = self.job.order
        group, prompts = self.group[order], self.job.tree.prompt_tokens[order]
        columns = (np.ones(len(order)), prompts, self._compute_s[order], self._own[order])
        return np.array([np.bincount(group, column, self.groups) for column in columns])


def _groups(job: OfflineJob, work: WorkModel) -> Ints:
    """(n,): the group of each request. Requests of known length have groups of their own.

    Those of low density are queued by their length; dense ones stay with those that share their
    prefixes.
    """
    known = job.known > 0
    if not known.any():
        return job.group
    exact = job.known.astype(np.float64)
    density = work.density(job.tree.prompt_tokens, np.maximum(exact, 1.0), exact * exact)
    bins = np.log(np.maximum(exact, 1.0)) / np.log(_LENGTH_BIN)
    number = np.where(known, np.where(density > 1.0, -2 - job.group, bins.astype(np.int64)), -1)
    joint = np.where(known, number * 2 + 1, job.group * 2)
    return np.unique(joint, return_inverse=True)[1].astype(np.int64)
