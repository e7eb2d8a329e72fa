"""Options of `foretell up`; importing them loads nothing of a cluster."""

from dataclasses import dataclass
from typing import Annotated, Literal

import typer


@dataclass(frozen=True, slots=True)
class UpFlags:
    """What to run; None: the flag was not given."""

    engines: Annotated[
        int | None, typer.Option(min=1, max=64, help="Number of engines; 4 without a file.")
    ] = None
    engine: Annotated[
        Literal["emulated", "vllm"] | None,
        typer.Option(help="Kind of engine; emulated without a file."),
    ] = None
    profile: Annotated[
        str | None, typer.Option(help="GPU profile DEVICE/MODEL of the engines.")
    ] = None
    schedulers: Annotated[
        int | None, typer.Option(min=1, max=16, help="Number of scheduler replicas; default 2.")
    ] = None
    host: Annotated[
        str | None, typer.Option(help="Address the schedulers listen on; default 127.0.0.1.")
    ] = None
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="Port all schedulers share; default 8000, 0 takes a free one."
        ),
    ] = None
    envoy: Annotated[
        bool | None,
        typer.Option(
            "--envoy", help="Put an Envoy in front, which asks the schedulers where requests go."
        ),
    ] = None
    provision: Annotated[
        str | None,
        typer.Option(
            metavar="MIN:MAX", help="Let a provisioner start and stop engines within these bounds."
        ),
    ] = None
    policy: Annotated[str | None, typer.Option(help="Placement policy; default slo.")] = None
    model: Annotated[
        str | None,
        typer.Option(help="vLLM: folder or name of the model; emulated: the name served."),
    ] = None
    python: Annotated[
        str | None, typer.Option(help="Python that has vLLM installed; default: this one.")
    ] = None
    engine_args: Annotated[
        str | None, typer.Option(help="Further flags for every engine, split as a shell would.")
    ] = None
    start_timeout: Annotated[
        float | None, typer.Option(min=1, help="Seconds an engine may take to serve; default 300.")
    ] = None

    def bounds(self) -> tuple[int, int] | None:
        """The least and the most engines of `provision`; ValueError if it is malformed."""
        if self.provision is None:
            return None
        least, colon, most = self.provision.partition(":")
        if not (colon and least.isdecimal() and most.isdecimal()):
            raise ValueError("say --provision MIN:MAX, such as 0:4")
        return int(least), int(most)
