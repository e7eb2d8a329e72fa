"""One engine in virtual time: a twin whose steps last as long as a step-time model says."""

from foretell.engine import Content, Sequence
from foretell.engine.timed import FreeBlocks, TimedTwin
from foretell.kernel.step_time import StepTime, scaled
from foretell.sim.config import InstanceConfig


class InvariantError(AssertionError):
    """The simulated cluster did something that no cluster may do."""


def check(condition: bool, what: str) -> None:
    """Raise `InvariantError` unless `condition`; unlike `assert`, also under `python -O`."""
    if not condition:
        raise InvariantError(what)


class Instance:
    """The caller keeps the clock. The kernel checks every step (`foretell.kernel.live`)."""

    def __init__(
        self,
        instance_id: str,
        config: InstanceConfig,
        *,
        prefix_cache: bool,
        counted_s: tuple[float, float],
    ) -> None:
        """`counted_s`: from when to when its free blocks are summed up."""
        self.instance_id = instance_id
        self.config = config.engine
        self.version = 0
        """Of its state."""
        self.changed_s = 0.0
        self.twin = TimedTwin(config.engine, prefix_cache=prefix_cache)
        self.twin.count_free_blocks(*counted_s)
        self._model: StepTime = config.step_time.packed()
        self._usual = self._model
        self._here: dict[str, Sequence] = {}

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._here

    def sequence(self, request_id: str) -> Sequence | None:
        """That request, if it is here."""
        return self._here.get(request_id)

    @property
    def steps(self) -> int:
        """Scheduled so far."""
        return self.twin.steps

    @property
    def in_step(self) -> bool:
        """A step is under way; newcomers wait for its end."""
        return self.twin.in_flight > 0

    @property
    def free_blocks(self) -> int:
        """KV blocks that no request holds."""
        return self.twin.free_blocks

    def slow_down(self, factor: float) -> None:
        """Steps scheduled from now on take `factor` times their usual time."""
        self._model = scaled(self._usual, factor)

    def deliver(
        self,
        request_id: str,
        prompt_tokens: int,
        output_tokens: int,
        content: Content | None,
        length_row: tuple[float, ...],
        now_s: float,
    ) -> None:
        """A request reaches the engine's queue; `length_row` is what predictors believe of it."""
        check(request_id not in self._here, f"{request_id} delivered twice")
        seq = Sequence(
            request_id, prompt_tokens, output_tokens, 0, arrival_s=now_s, content=content
        )
        self._here[request_id] = seq
        self.twin.arrive(seq, length_row)
        self._change(now_s)

    def advance(self, now_s: float) -> tuple[list[Sequence], float | None]:
        """The oldest step ends, if there is one, and what can be scheduled is.

        Returns whom it ended, and when to call again; None: when somebody comes.
        """
        try:
            finished = self.twin.advance(self._model, now_s)
        except InvariantError:
            raise
        except AssertionError as error:
            raise InvariantError(f"{self.instance_id}: {error}") from error
        for seq in finished:
            check(
                self._here.pop(seq.request_id, None) is not None,
                f"{seq.request_id} finished but was not here",
            )
        self._change(now_s)
        return finished, self.twin.ends_s if self.in_step else None

    def die(self) -> list[tuple[str, bool]]:
        """Whom the engine's death befalls, in order of arrival, and whether it had a token."""
        return [(key, bool(seq.row["output"] > 0)) for key, seq in self._here.items()]

    def free_blocks_so_far(self, now_s: float) -> FreeBlocks:
        """Free blocks summed over the time that is counted."""
        return self.twin.free_blocks_so_far(now_s)

    def check_empty(self) -> None:
        """Nothing is left behind: no request, no step, no block."""
        twin = self.twin
        check(
            not (twin.running or twin.waiting or self.in_step or self._here),
            f"{self.instance_id}: {len(twin.running)} running and {len(twin.waiting)} waiting "
            f"requests left behind, of {sorted(self._here)}",
        )
        twin.check()
        check(
            twin.free_blocks == self.config.total_blocks,
            f"{self.instance_id}: {self.config.total_blocks - twin.free_blocks} blocks leaked",
        )

    def _change(self, now_s: float) -> None:
        self.version += 1
        self.changed_s = now_s
