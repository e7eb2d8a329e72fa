"""The multimodal inputs of an engine: what the twin models, and what snapshots contain."""

from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from vllm.sampling_params import SamplingParams
from vllm.v1.core.encoder_cache_manager import EncoderCacheManager
from vllm.v1.request import Request

from foretell.model import EncoderInput, EngineConfig, content_number
from foretell.v1 import snapshot_pb2
from foretell.wire import encoder_inputs_to_proto

_NOT_SCHEDULED = "images, audio or video"
_NOT_PREDICTED = (
    "which images, audio or video a new request has",
    "the time that encoding images, audio or video takes",
)


def not_modelled(scheduler: Any) -> list[str]:
    """What the twin does not model of this engine's multimodal inputs."""
    if not has_encoder(scheduler):
        return []
    return list(_NOT_PREDICTED) if is_modelled(scheduler) else [_NOT_SCHEDULED]


def described(scheduler: Any) -> dict[str, Any]:
    """The fields of `EngineConfig` about the encoder; empty if the twin does not model it."""
    if not has_encoder(scheduler) or not is_modelled(scheduler):
        return {}
    return {
        "max_num_encoder_input_tokens": scheduler.max_num_encoder_input_tokens,
        "encoder_cache_size": scheduler.encoder_cache_manager.cache_size,
        "disable_chunked_mm_input": bool(scheduler.scheduler_config.disable_chunked_mm_input),
        "num_prefill_lookahead_tokens": scheduler.num_prefill_lookahead,
    }


def has_encoder(scheduler: Any) -> bool:
    """Whether there can be multimodal inputs."""
    return getattr(scheduler, "max_num_encoder_input_tokens", 0) > 0


def is_modelled(scheduler: Any) -> bool:
    """Whether the twin models how multimodal inputs are scheduled."""
    return (
        knows_encoding(type(scheduler))
        and type(scheduler.encoder_cache_manager) is EncoderCacheManager
        and not getattr(scheduler, "is_encoder_decoder", False)
        and getattr(scheduler, "num_prefill_lookahead", 2) <= 1
        and getattr(scheduler, "planner", None) is None
    )


def knows_encoding(scheduler: type[Any]) -> bool:
    """Whether this version of vLLM encodes multimodal inputs as the twin does (0.32).

    Recognised by attributes of its scheduler, and by its encoder cache's behaviour: an input that
    occurs twice in a request stays until the request needs neither occurrence.
    """
    has_steps = hasattr(scheduler, "_allocate_encoder_inputs")
    probe = Request("foretell-probe", [0], SamplingParams(max_tokens=1), None)
    try:
        return has_steps and hasattr(probe, "num_in_flight_tokens") and _holds_repeated_inputs()
    except (AttributeError, TypeError):
        return False


def _holds_repeated_inputs() -> bool:
    manager, feature = EncoderCacheManager(cache_size=8), SimpleNamespace(identifier="probe")
    request: Any = SimpleNamespace(
        request_id="probe", mm_features=[feature, feature], get_num_encoder_embeds=lambda _: 1
    )
    manager.allocate(request, 0)
    found = manager.check_and_update_cache(request, 1)
    manager.free_encoder_input(request, 0)
    held = manager.num_freeable_slots
    manager.free_encoder_input(request, 1)
    return bool(found and (held, manager.num_freeable_slots) == (7, 8))


class EncoderState:
    """Follows the multimodal inputs of requests and the encoder cache. Runs in the hot loop."""

    def __init__(self, scheduler: Any, config: EngineConfig) -> None:
        self._manager = scheduler.encoder_cache_manager
        self._inputs: dict[str, tuple[EncoderInput, ...]] = {}
        self._cache = b""
        self._changes = True  # the cache may differ from `_cache`
        self._held = False
        self.holds_while_waiting = config.num_prefill_lookahead_tokens > 0
        """Whether requests that wait may need entries of the cache, too."""

    @classmethod
    def of(cls, scheduler: Any, config: EngineConfig) -> "EncoderState | None":
        """A new one; None if there are no multimodal inputs, or the twin does not model them."""
        return cls(scheduler, config) if config.max_num_encoder_input_tokens else None

    def learn(self, request: Any) -> None:
        """Note the inputs of a new request."""
        if request.mm_features:
            self._inputs[request.request_id] = tuple(map(_told, request.mm_features))

    def forget(self, request_id: str) -> None:
        """Forget a request that has ended."""
        self._inputs.pop(request_id, None)

    def is_held(self) -> bool:
        """Whether a request needs an entry of the cache, or did at the last call."""
        before, self._held = self._held, bool(self._manager.request_cached_ids)
        return before or self._held

    def tell(self, ids: Sequence[str], columns: snapshot_pb2.RequestColumns) -> None:
        """Fill in the columns of these requests; do nothing if none of them has inputs."""
        known, held = self._inputs, self._manager.request_cached_ids
        if not known or known.keys().isdisjoint(ids):
            return
        columns.encoder_inputs.extend([len(known.get(i, ())) for i in ids])
        columns.inputs.CopyFrom(
            encoder_inputs_to_proto(
                [
                    each._replace(held=int(place in held.get(i, ())))
                    for i in ids
                    for place, each in enumerate(known.get(i, ()))
                ]
            )
        )

    def cache(self) -> bytes:
        """The cache's fields of a snapshot, serialized. Only requests with inputs change them."""
        if self._inputs or self._changes:
            cached = _cached(self._manager.freeable, self._manager.num_embeds_by_hash)
            self._cache, self._changes = cached.SerializeToString(), bool(self._inputs)
        return self._cache


def _cached(unused: Iterable[str], embeds: Mapping[str, int]) -> snapshot_pb2.EngineSnapshot:
    order = [*unused]
    order += embeds.keys() - set(order)
    return snapshot_pb2.EngineSnapshot(
        encoder_cache_content=list(map(content_number, order)),
        encoder_cache_embeds=[embeds[each] for each in order],
    )


def _told(feature: Any) -> EncoderInput:
    place = feature.mm_position
    embeds, first, end = place.get_num_embeds(), 0, place.length
    if embeds < end:
        found = place.is_embed.nonzero().flatten().tolist()
        first, end = (found[0], found[-1] + 1) if found else (0, 0)
    content = content_number(feature.identifier)
    return EncoderInput(content, place.offset, place.length, embeds, first, end)
