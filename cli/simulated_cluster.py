"""What the commands that simulate a cluster share."""

from dataclasses import dataclass, replace
from typing import Annotated

import typer

from foretell.tools.simulate.options import EMULATED, SimulateOptions, parse_engines

INSTALL = "pip install -e '.[profiles]' in the checkout"
_PER_ENGINE = "Give it once, or once for each profile; the default is the profile's."


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """The engines but for their profiles, and what befalls them; a field for each option."""

    instances: Annotated[
        int, typer.Option(min=0, help="Number of engines, where there is one profile; 0: one.")
    ] = 0
    max_num_seqs: Annotated[
        list[int] | None, typer.Option(min=1, help=f"vLLM's max_num_seqs. {_PER_ENGINE}")
    ] = None
    max_num_batched_tokens: Annotated[
        list[int] | None, typer.Option(min=1, help=f"vLLM's max_num_batched_tokens. {_PER_ENGINE}")
    ] = None
    num_blocks: Annotated[
        list[int] | None, typer.Option(min=1, help=f"Usable KV blocks. {_PER_ENGINE}")
    ] = None
    max_model_len: Annotated[
        list[int] | None, typer.Option(min=1, help=f"vLLM's max_model_len. {_PER_ENGINE}")
    ] = None
    fault: Annotated[
        list[str] | None,
        typer.Option(
            help="KIND:INSTANCE:AT_S[:FOR_S]; crash, slow[=FACTOR], mute or dead-predictor."
        ),
    ] = None

    def limits(self) -> dict[str, list[int]]:
        """What was given of each limit, by its name."""
        names = ("max_num_seqs", "max_num_batched_tokens", "num_blocks", "max_model_len")
        return {name: getattr(self, name) or [] for name in names}

    def with_engines(self, options: SimulateOptions, profiles: list[str]) -> SimulateOptions:
        """The options with engines of these profiles; ValueError where flags contradict."""
        engines = parse_engines(profiles, self.instances, self.limits())
        return replace(options, engines=engines, faults=tuple(self.fault or ()))


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFlags(EngineLimits):
    """The engines, and what befalls them."""

    profile: Annotated[
        list[str] | None,
        typer.Option(
            help="GPU profile, a shipped name or a file; several as P1xN1,P2xN2. Without one, "
            f"{EMULATED.profile}, {EMULATED.instances} engines of it."
        ),
    ] = None

    def added_to(self, options: SimulateOptions) -> SimulateOptions:
        """The options with these engines; ValueError where flags contradict each other."""
        if self.profile:
            return self.with_engines(options, self.profile)
        count = self.instances or EMULATED.instances
        return replace(self, instances=count).with_engines(options, [EMULATED.profile])
