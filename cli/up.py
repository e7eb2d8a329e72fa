"""`foretell up`: run a cluster on this machine."""

from typing import Annotated

import typer

from foretell.cli.options import taking
from foretell.tools.local.options import UpFlags


@taking(UpFlags)
def up(
    flags: UpFlags,
    cluster: Annotated[
        str, typer.Option(metavar="FILE", help="Cluster file; the other flags override it.")
    ] = "",
    run_dir: Annotated[
        str, typer.Option(help="Folder for state, sockets and logs; empty: a new one.")
    ] = "",
    restart: Annotated[bool, typer.Option(help="Restart processes that end.")] = True,
    plain: Annotated[
        bool, typer.Option("--plain", help="Print a line for each event instead of a table.")
    ] = False,
) -> None:
    """Run a cluster on this machine until Ctrl-C.

    The cluster file describes it. Without one, it has emulated engines. Environment variables
    override the file: see `foretell reference`.
    """
    from foretell.tools.local.up import up as run_cluster

    run_cluster(cluster, flags, run_dir=run_dir, restart=restart, plain=plain)
