"""`foretell render`: files that are derived from a cluster file."""

from pathlib import Path
from typing import Annotated

import typer

from foretell.cli.options import refusing

app = typer.Typer(no_args_is_help=True, help="Write files that are derived from a cluster file.")
_File = Annotated[Path, typer.Option("--cluster", metavar="FILE", help="Cluster file.")]


@app.command()
def compose(
    cluster: _File = Path("cluster.yaml"),
    output: Annotated[Path, typer.Option(metavar="DIR", help="Folder to write to.")] = Path(),
    source: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder of this project, to build images from.")
    ] = Path(),
) -> None:
    """Write the compose file of a cluster, one for each of its hosts."""
    from foretell.config import ClusterError, load_cluster
    from foretell.tools.render.compose import render

    with refusing("render", ClusterError):
        files = render(load_cluster(cluster), cluster, output, source)
    for name, content in files.items():
        path = output / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
        typer.echo(path)


@app.command()
def envoy(
    cluster: _File = Path("cluster.yaml"),
) -> None:
    """Print the configuration of an Envoy in front of a cluster's schedulers on this host."""
    from foretell.config import ClusterError, Layout, load_cluster
    from foretell.tools.envoy import configuration

    with refusing("render", ClusterError):
        typer.echo(configuration(Layout(load_cluster(cluster))), nl=False)


@app.command()
def kubernetes(
    cluster: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Cluster file; without one: the values alone."),
    ] = None,
    values: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Values of the chart, which override those of the cluster file."
        ),
    ] = None,
    release: Annotated[str, typer.Option(help="Name that objects begin with.")] = "foretell",
    namespace: Annotated[str, typer.Option(help="Namespace that they are for.")] = "default",
    only_values: Annotated[
        bool, typer.Option("--only-values", help="Print the values and no manifests.")
    ] = False,
) -> None:
    """Print plain manifests: the Helm chart, rendered by Helm's own library or program."""
    from foretell.config import ClusterError, load_cluster
    from foretell.tools.chart.from_cluster import values_of
    from foretell.tools.chart.rendered import manifests, read_values, values_text

    with refusing("render", ClusterError):
        given = read_values(values) if values else {}
        chosen = values_of(load_cluster(cluster), given) if cluster else given
        text = values_text(chosen) if only_values else manifests(chosen, release, namespace)
    typer.echo(text, nl=False)


@app.command()
def schema() -> None:
    """Print the JSON Schema of cluster files, for editors."""
    from foretell.config.cluster import cluster_schema

    typer.echo(cluster_schema(), nl=False)
