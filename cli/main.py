"""The `foretell` command. Each subcommand imports what it needs when it runs."""

import typer

from cli import bench, length, profile, render, twin
from cli.accuracy import accuracy
from cli.capacity import capacity
from cli.check import check
from cli.demo import demo
from cli.explain import explain
from cli.order import order
from cli.plan import plan
from cli.reference import reference
from cli.regret import regret
from cli.run_batch import run_batch
from cli.settings import settings
from cli.simulate import simulate
from cli.status import status
from cli.train import train_small_tagger, train_tagger
from cli.tune import tune
from cli.up import up

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Foretell: LLM serving placed by prediction.",
)
for _command in (
    up,
    status,
    demo,
    explain,
    settings,
    reference,
    check,
    accuracy,
    simulate,
    capacity,
    plan,
    regret,
    order,
    run_batch,
    tune,
    train_tagger,
    train_small_tagger,
):
    app.command()(_command)
for _name, _group in (
    ("profile", profile.app),
    ("render", render.app),
    ("length", length.app),
    ("twin", twin.app),
    ("bench", bench.app),
):
    app.add_typer(_group, name=_name)


def main() -> None:
    app()


if __name__ == "__main__":
    main()
