"""Feedback control of what an engine is given: by the work that remains, not by a plan.

There are two kinds of requests: R, whose group needs memory for longer than arithmetic and has a
lower density than all waiting work together, and the others (L), in depth-first order. A step may
compute for as long as it reads memory, times τ (remaining computing over remaining reading), or, if
longer, for as long as hides behind reading the weights. R is admitted while a forecast says that it
will fit into the KV cache, L with what is left of the step. While R has room, a step may also
compute R's prompts to fill the cache: the computing due to a half full cache would keep it half
full. When all of R has been sent, the rest of L is spread over the steps that R is still expected
to take. Lengths are learnt from all answers; those of requests in flight are censored.
"""

from collections.abc import Sequence
from math import ceil, inf

import numpy as np
from numpy.typing import NDArray

from foretell.offline.feed import (
    LEAST_STEP_TOKENS,
    UNTIL_SOMETHING_CHANGES,
    InFlight,
    Uncached,
    UsedPrefixes,
)
from foretell.offline.forecast import WorkForecast
from foretell.offline.waiting import OfflineJob, Waiting
from foretell.offline.work import Floats, WorkModel, contexts

_LEFT, _RIGHT = 0, 1
_REFRESH_STEPS = 64
_SIGMAS = 1.0  # standard deviations of the KV cache's forecast that must fit
_RESERVED = 0.75  # of what L will hold: R, limited by its peaks, leaves some more
_USED = 0.98  # of the KV cache; the rest is lost to blocks that are not full
_HEARD, _UNHEARD = 8, 32  # answers that tell a group's lengths; most running until then
_SLACK = 1.1  # of a step's prompt tokens beyond what requests are sent for: no backlog grows
_LONG = 0.5  # of the token-weighted mean length: without overlap, R's answers are longer
_ANY = 0.5  # expected requests; fewer count as none
_KEPT = 0.5  # of the computing that waits: the most that is kept for the end
_RETRY_STEPS = 8  # steps to wait after the forecast has refused a request


class Feedback:
    """Feeds one engine by feedback control."""

    def __init__(
        self,
        job: OfflineJob,
        work: WorkModel,
        kv_tokens: int,
        *,
        overlaps: bool = True,
        seats: int = 1 << 30,
    ) -> None:
        """`kv_tokens`: size of the engine's KV cache. `seats`: requests that it runs at once.

        An engine that `overlaps` computes while it reads memory. For one that does not, spreading
        computing evenly has no use, but having few steps has, since each reads the weights: L fills
        what R leaves of the cache or, if seats run out first, of the seats.
        """
        self._overlaps = overlaps
        self._seats = self._right_seats = seats
        self._even_s = inf
        """Seconds of L's computing per step if seats are short; otherwise infinite."""
        self._work, self._kv_cache = work, _USED * kv_tokens
        self._prefixes = UsedPrefixes(job.tree)
        self._most = job.most_tokens
        self._known = job.known
        self._waiting = Waiting(job, work)
        self._forecast = WorkForecast(job, self._waiting)
        self._known_list, self._group = self._waiting.known_list, self._waiting.group
        self._group_list, self._queues = self._waiting.group_list, self._waiting.queues
        tree = job.tree
        self._prompts, self._uncached = tree.prompt_tokens.tolist(), Uncached(tree)
        self._own = (tree.depth - tree.begins)[: tree.requests]
        self._running = [0] * self._waiting.groups
        """Requests of each group that this engine runs."""
        self._left: list[int] = []
        """Groups of L: those of unknown lengths first, then those with the largest share left."""
        self._right: list[int] = []
        """Groups of R, the longest answers first."""
        self._flights = InFlight(), InFlight()
        """Requests that were sent as L, and as R."""
        self._side: dict[int, int] = {}
        self._steps = self._refused_until = 0
        self._refreshed = -1
        self._credit_s = self._reserve = self._growth = self._spread_s = 0.0
        self._tau = self._pace = 1.0
        self._right_ratio = 0.0
        """Computing over reading of R's waiting requests, at most τ."""
        self._doubtful = True
        self._since = 1
        """Steps since the last admission."""

    def admit(self, waiting: int) -> Sequence[int]:
        if self._steps // _REFRESH_STEPS != self._refreshed:
            self._refresh()
        if waiting:
            return ()
        budget_s = self._budget_s()
        missed_s = (self._since - 1) * budget_s if self._since > 1 else 0.0
        self._credit_s = min(0.0, self._credit_s + missed_s) + budget_s
        self._since = 0
        chosen: list[int] = []
        if self._right and self._right_may and self._steps >= self._refused_until:
            self._admit_right(chosen)
        self._admit_left(chosen)
        if not chosen and not self._side:
            chosen += self._any()
        return chosen

    def step_tokens(self) -> int:
        if not self._overlaps:
            return 0
        tokens = int(_SLACK * self._budget_s() / self._work.prefill_token_s)
        return len(self._side) + max(LEAST_STEP_TOKENS, tokens)

    def unasked_steps(self) -> int:
        if not any(self._queues[group] for group in (*self._left, *self._right)):
            return UNTIL_SOMETHING_CHANGES
        if not self._side:
            return 1
        steps = _REFRESH_STEPS - self._steps % _REFRESH_STEPS
        if self._credit_s <= 0:
            steps = min(steps, ceil(-self._credit_s / self._budget_s()))
        if self._right and self._right_may:
            # A refusal holds until an answer ends, or until the forecast changes.
            steps = min(steps, self._refused_until - self._steps)
        return max(1, steps)

    def stepped(self, steps: int) -> None:
        self._steps += steps
        self._since += steps
        for flight in self._flights:
            flight.step(steps)

    def ended(self, request: int, tokens: int) -> None:
        side = self._side.pop(request)
        self._prefixes.leave(request)
        self._flights[side].remove(request)
        if side == _RIGHT:
            self._refused_until = 0
        self._running[self._group_list[request]] -= 1
        self._waiting.ended(request, tokens)

    def _budget_s(self) -> float:
        """Seconds that the next step may spend on computing prompts."""
        if not self._overlaps:
            return self._even_s
        tokens = sum(each.context_tokens for each in self._flights)
        memory_s = self._work.decode_pair_s * tokens
        free_s = self._work.decode_pair_s * max(0.0, self._memory - tokens)
        due_s = self._pace * memory_s + self._filling * free_s
        decode_s = self._work.decode_token_s * len(self._side)
        hidden_s = float(self._hidden_s(np.array(memory_s)))
        return max(due_s, hidden_s, self._spread_s) - decode_s

    @property
    def _filling(self) -> float:
        """Seconds of computing to fill the cache, per second of reading that it has room for.

        R's ratio while R is not refused, since only R fills the cache in time. Without any R, all
        that remains is computed at the pace of a full cache.
        """
        if self._doubtful:
            return 0.0
        if self._right:
            return self._right_ratio if self._steps >= self._refused_until else 0.0
        return 0.0 if len(self._flights[_RIGHT]) else self._pace

    @property
    def _memory(self) -> float:
        """KV tokens that are left for what requests do not share."""
        return self._kv_cache - self._prefixes.tokens

    @property
    def _right_may(self) -> bool:
        """Whether R may be admitted now. Without overlap, the budget limits only L."""
        return self._credit_s > 0 or not self._overlaps

    def _admit_right(self, chosen: list[int]) -> None:
        forecast = self._forecast.of(self._flights[_RIGHT])
        for group in self._right:
            queue = self._queues[group]
            while queue and self._right_may and self._may_grow(group):
                if len(self._flights[_RIGHT]) >= self._right_seats:
                    return
                mean, variance = forecast
                more, spread = self._forecast.held(np.array([queue[-1]]), np.zeros(1, np.int64))
                mean, variance = mean + more, variance + spread
                if (mean + _SIGMAS * np.sqrt(variance)).max() > self._memory - self._reserve:
                    self._refused_until = self._steps + _RETRY_STEPS
                    break
                forecast = mean, variance
                chosen.append(self._send(group, _RIGHT))

    def _admit_left(self, chosen: list[int]) -> None:
        """Requests of L while the step has time for them and the cache has room."""
        for group in self._left:
            queue = self._queues[group]
            while queue and self._credit_s > 0 and self._may_grow(group):
                if len(self._side) >= self._seats:
                    return
                if not self._fits(queue[-1], self._typical[group]):
                    return
                chosen.append(self._send(group, _LEFT))

    def _may_grow(self, group: int) -> bool:
        """Whether more of a group may be sent: only a few until its lengths are known."""
        return self._waiting.heard[group] >= _HEARD or self._running[group] < _UNHEARD

    def _fits(self, request: int, answer: float) -> bool:
        more = float(self._own[request]) + (self._known_list[request] or answer)
        more += self._prefixes.more(request)
        return bool(self._kv_tokens + self._growth + more < self._memory)

    def _any(self) -> list[int]:
        """A request for an engine that has nothing to do, if any is left."""
        for group in (*self._right, *self._left):
            if self._queues[group]:
                return [self._send(group, _LEFT)]
        return []

    def _send(self, group: int, side: int) -> int:
        """Send the next request of a group to the engine, and return it."""
        request = self._waiting.take(group)
        own = self._uncached.bring(request)
        if self._overlaps or side == _LEFT:
            self._credit_s -= own * self._work.prefill_token_s
        self._flights[side].add(request, int(self._own[request]), self._prompts[request])
        self._side[request] = side
        self._running[group] += 1
        self._prefixes.use(request)
        return request

    @property
    def _kv_tokens(self) -> int:
        return sum(flight.kv_tokens for flight in self._flights)

    def _refresh(self) -> None:
        """Learn from ended and running requests; divide the groups and the memory again."""
        self._refreshed = self._steps // _REFRESH_STEPS
        work, waiting = self._work, self._waiting
        requests = np.concatenate([flight.requests for flight in self._flights])
        ages = np.concatenate([flight.ages for flight in self._flights])
        prompt_tokens = np.concatenate([flight.prompt_tokens for flight in self._flights])
        unknown = self._known[requests] == 0
        groups = self._group[requests]
        waiting.survival.update(groups[unknown], ages[unknown])
        mean, square = waiting.survival.moments()
        mean = np.minimum(mean, self._most)
        square = np.minimum(square, float(self._most) * mean)
        self._typical: list[float] = mean.tolist()
        count, prompts, compute_s, own = waiting.sums
        memory_s = work.decode_pair_s * contexts(prompts, mean, count * square)
        compute_s = compute_s + count * work.decode_token_s * mean
        ahead = waiting.survival.mean_left(groups, ages)
        going = np.clip(np.where(unknown, ahead, self._known[requests] - ages), 1.0, self._most)
        reads = contexts(prompt_tokens + ages, going, going**2)
        compute = float(compute_s.sum() + work.decode_token_s * going.sum())
        memory = float(memory_s.sum() + work.decode_pair_s * reads.sum())
        doubtful = (np.array(waiting.heard) < _HEARD) & (count > 0) & waiting.to_learn
        self._doubtful = bool(doubtful.any())
        self._tau = 1.0 if self._doubtful else compute / max(memory, 1e-30)
        # Compared with waiting work only: beside running work, the last groups would seem dense.
        dense = (compute_s > memory_s) | (compute_s * memory_s.sum() > compute_s.sum() * memory_s)
        if not self._overlaps:
            # Every step reads the weights, so that long answers must not be left for the end.
            long = float((count * mean) @ mean) / max(float(count @ mean), 1e-30)
            dense = mean < _LONG * long
        self._divide(dense)
        if not self._overlaps:
            self._share_seats(count, own, compute_s, mean, square)
        right = self._right
        ratio = float(compute_s[right].sum()) / max(float(memory_s[right].sum()), 1e-30)
        self._right_ratio = min(self._tau, ratio)
        self._reserve = self._left_holds(count, own, mean, square)
        self._look_ahead(float(going.max(initial=0.0)), mean)
        self._keep_for_end(float(compute_s.sum()), compute, memory)

    def _keep_for_end(self, waiting_s: float, compute_s: float, memory_s: float) -> None:
        """Set the pace of computing until all of R has been sent, and the spread after that.

        After that R runs out, like its requests in flight now. Then every step until the last one
        should still have computing that hides behind the weights. `waiting_s`: computing not begun.
        """
        self._pace, self._spread_s = self._tau, 0.0
        flight, moments = self._flights[_RIGHT], self._forecast.moments
        steps = np.diff(moments)
        if self._doubtful or not self._overlaps or not len(flight):
            return
        stays = self._forecast.stays(flight.requests, flight.ages)[:, 1:]
        held = flight.prompt_tokens[:, None] + flight.ages[:, None] + moments[None, 1:]
        reads_s = self._work.decode_pair_s * (stays * held).sum(axis=0)
        some = stays.sum(axis=0) > _ANY
        if not self._right:
            self._spread_s = waiting_s / max(_REFRESH_STEPS, float(steps[some].sum()))
            return
        kept_s = float(((self._hidden_s(reads_s) * steps)[some]).sum())
        later_s = float((reads_s * steps).sum())
        kept_s = min(kept_s, _KEPT * waiting_s)
        if later_s < memory_s and kept_s * memory_s > compute_s * later_s:
            self._pace = (compute_s - kept_s) / (memory_s - later_s)

    def _hidden_s(self, reads_s: Floats) -> Floats:
        """Seconds of computing that hide behind reading weights, in a step with `reads_s` of reads.

        As if computing and reading added up in quadrature: more hides than if one followed the
        other, and less than if they ran side by side.
        """
        weights_s = self._work.weights_s
        result: Floats = np.sqrt(weights_s * (weights_s + 2.0 * reads_s))
        return result

    def _look_ahead(self, longest: float, mean: Floats) -> None:
        """Choose the forecast's moments; find how much more those in flight will soon hold."""
        farthest = max(
            1.0, longest, *(mean[group] for group in (*self._right[:1], *self._left[:1]))
        )
        self._forecast.look(farthest)
        soon = max((mean[group] for group in self._left[:1]), default=0.0)
        moments = self._forecast.moments
        near = moments <= max(soon, moments[1])
        expected = sum(self._forecast.of(flight)[0][near] for flight in self._flights)
        self._growth = max(0.0, float(np.max(expected)) - self._kv_tokens)

    def _divide(self, dense: NDArray[np.bool_]) -> None:
        """Divide the groups with waiting requests into L, which are `dense`, and R."""
        filled = [group for group, queue in enumerate(self._queues) if queue]
        self._left = [group for group in filled if dense[group]]
        self._right = [group for group in filled if not dense[group]]
        self._right.sort(key=lambda group: -self._typical[group])
        self._left.sort(key=self._turn)
        left, right = self._flights
        for request in left.requests.tolist():
            if self._group_list[request] in self._right:
                left.move(request, right)
                self._side[request] = _RIGHT

    def _turn(self, group: int) -> tuple[bool, float]:
        """The sort key of L's groups: those of unknown lengths come first."""
        return self._waiting.heard[group] >= _HEARD, -self._waiting.part_left(group)

    def _share_seats(
        self, count: Floats, own: Floats, compute_s: Floats, mean: Floats, square: Floats
    ) -> None:
        """Set the seats for R, and L's computing per step, so that both end together."""
        self._right_seats, self._even_s = self._seats, inf
        left, right = self._left, self._right
        if not left or not right or self._doubtful:
            return
        flight = self._flights[_RIGHT]
        ahead = self._waiting.survival.mean_left(self._group[flight.requests], flight.ages)
        sits_right = float(count[right] @ mean[right]) + float(ahead.sum())
        sits_left = float(count[left] @ (mean[left] + 1.0))
        steps = max((sits_left + sits_right) / self._seats, 1.0)
        held = float((own * mean + count * square / 2.0).sum())
        if steps * self._memory > held:
            self._right_seats = max(1, self._seats - ceil(sits_left / steps))
            self._even_s = float(compute_s[left].sum()) / steps

    def _left_holds(self, count: Floats, own: Floats, mean: Floats, square: Floats) -> float:
        """KV tokens that L will hold on average, by Little's law: prompt tokens that a step has
        time for while the KV cache is full, times what each holds until its answer's end."""
        left = self._left
        if not left or not self._right:
            return 0.0
        # KV tokens times steps until the answer's end, per own prompt token and one per request.
        tokens = float((own[left] + count[left]).sum())
        holds = float((own[left] * mean[left] + count[left] * square[left] / 2.0).sum()) / tokens
        full_s = self._tau * self._work.decode_pair_s * self._memory
        pace = full_s / self._work.prefill_token_s
        return min(_RESERVED * holds * pace, 0.5 * self._memory)
