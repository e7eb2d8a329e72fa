"""vLLM's waiting queue with two classes: online in vLLM's order, then chosen offline ones."""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

from vllm.v1.core.sched.request_queue import (
    RequestQueue,
    SchedulingPolicy,
    create_request_queue,
)

from foretell.cosched import OfflinePool


class TwoClassQueue(RequestQueue):  # type: ignore[misc]
    """Replaces `scheduler.waiting`.

    vLLM admits what `peek_request` returns while the queue is true. If only offline requests are
    left, it is true as long as `choose` returns one of them.
    """

    def __init__(
        self,
        policy: SchedulingPolicy,
        is_offline: Callable[[Any], bool],
        choose: Callable[[], int | None],
    ) -> None:
        self.online: Any = create_request_queue(policy)
        self.pool = OfflinePool()
        self._is_offline = is_offline
        self._choose = choose
        self._requests: dict[int, Any] = {}
        self._keys: dict[str, int] = {}
        self._next_key = 0
        self._chosen: int | None = None

    def request(self, key: int) -> Any:
        """The waiting offline request of a key."""
        return self._requests[key]

    def forget_choice(self) -> None:
        """Allow another offline request to be chosen than the one shown last."""
        self._chosen = None

    def add_request(self, request: Any) -> None:
        if self._is_offline(request):
            self._add_offline(request)
        else:
            self.online.add_request(request)

    def prepend_request(self, request: Any) -> None:
        if self._is_offline(request):
            self._add_offline(request)
        else:
            self.online.prepend_request(request)

    def prepend_requests(self, requests: Iterable[Any]) -> None:
        for request in requests:  # each before the last, as vLLM's queue does it
            self.prepend_request(request)

    def peek_request(self) -> Any:
        if self.online:
            return self.online.peek_request()
        if not self:
            raise IndexError("peek from an empty queue")
        assert self._chosen is not None, "a queue that is true has something to show"
        return self._requests[self._chosen]

    def pop_request(self) -> Any:
        request = self.peek_request()
        if self.online:
            return self.online.pop_request()
        self._remove_offline(request, admitted=True)
        return request

    def remove_request(self, request: Any) -> None:
        self.remove_requests([request])

    def remove_requests(self, requests: Iterable[Any]) -> None:
        online = []
        for request in requests:
            if request.request_id in self._keys:
                self._remove_offline(request, admitted=False)
            else:
                online.append(request)
        if online:
            self.online.remove_requests(online)

    def __bool__(self) -> bool:
        if self.online:
            return True
        if self._chosen is None and self._keys:
            self._chosen = self._choose()
        return self._chosen is not None

    def __len__(self) -> int:
        return len(self.online) + len(self._keys)

    def __iter__(self) -> Iterator[Any]:
        return chain(self.online, map(self._requests.__getitem__, self.pool))

    def _add_offline(self, request: Any) -> None:
        key = self._next_key
        self._next_key += 1
        self._keys[request.request_id] = key
        self._requests[key] = request
        self.pool.add(key, tuple(request.block_hashes), request.num_prompt_tokens)

    def _remove_offline(self, request: Any, *, admitted: bool) -> None:
        key = self._keys.pop(request.request_id)
        del self._requests[key]
        self.pool.remove(key, admitted=admitted)
        if self._chosen == key:
            self._chosen = None
