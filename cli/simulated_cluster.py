"""What `foretell simulate` and `foretell capacity` share."""

from dataclasses import dataclass, replace
from typing import Annotated

import typer

from tools.simulate.options import SimulateOptions, parse_engines

INSTALL = "pip install -e '.[profiles]' in the checkout"
_PER_ENGINE = "Give it once, or once for each profile; the default is the profile's."


@dataclass(frozen=True, slots=True)
class EngineFlags:
    """The engines, and what befalls them; a field for each option."""

    profile: Annotated[
        list[str],
        typer.Option(
            help="GPU profile, a shipped name or a file; several as P1xN1,P2xN2.",
            show_default=False,
        ),
    ]
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
    block_size: Annotated[
        list[int] | None, typer.Option(min=1, help=f"Tokens of a KV block. {_PER_ENGINE}")
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

    def added_to(self, options: SimulateOptions) -> SimulateOptions:
        """The options with these engines; ValueError where flags contradict each other."""
        limits = ("max_num_seqs", "max_num_batched_tokens", "num_blocks", "block_size")
        given = {name: getattr(self, name) or [] for name in (*limits, "max_model_len")}
        engines = parse_engines(self.profile, self.instances, given)
        return replace(options, engines=engines, faults=tuple(self.fault or ()))
