"""Everything that can be set, called or measured, as docs/reference.md."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from typer.core import TyperArgument, TyperCommand, TyperGroup

from foretell.openai.surface import ENDPOINTS
from foretell.services.scheduler.record.request_log import FIELDS
from foretell.telemetry import Metric
from foretell.tools.observability.catalogue import by_process
from foretell.tools.settings_reference import Entry, groups
from foretell.workload import traces

_TEMPLATE = Path(__file__).with_suffix(".md")
"""The page, with a line `<name>` in place of each generated part."""


def markdown(foretell: TyperGroup) -> str:
    """The whole of docs/reference.md; `foretell` is the command with all its subcommands."""
    generated = {
        "settings": _settings(),
        "commands": [_list(_commands(foretell))],
        "metrics": _metrics(),
        "endpoints": [_list(_endpoints())],
        "request_log": [_list((f"`{name}`", text) for name, text in FIELDS.items())],
        "traces": [_list(_columns())],
    }
    page = _TEMPLATE.read_text(encoding="utf-8")
    for name, blocks in generated.items():
        page = page.replace(f"<{name}>\n", "\n\n".join(blocks) + "\n")
    return page


def _columns() -> list[tuple[str, str]]:
    quantiles = f"`{traces.EXPECTED}`, with quantiles such as `p10` and `p97.5`"
    return [
        ("input tokens", _names(traces.INPUTS)),
        ("output tokens", _names(traces.OUTPUTS)),
        ("arrival time in seconds", _names(traces.TIMES)),
        ("targets in seconds", _names((traces.TTFT_SLO, traces.TPOT_SLO))),
        ("vLLM's priority", _names((traces.PRIORITY,))),
        ("output length as believed before, for `--estimates told`", quantiles),
    ]


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _endpoints() -> Iterator[tuple[str, str]]:
    for title, generates in (("Placed by prediction", True), ("Placed by load", False)):
        yield title, _names(e.path for e in ENDPOINTS.values() if e.generates is generates)


def _settings() -> Iterator[str]:
    for group in groups():
        yield f"### {group.title}\n\n{group.text}"
        yield _list(_entry(entry) for entry in group.entries)


def _entry(entry: Entry) -> tuple[str, str]:
    mark = "\\*" if entry.of_process else ""
    default = f" ({entry.default})" if entry.default else ""
    return f"`{entry.name}`{mark}{default}", entry.meaning


def _commands(foretell: TyperGroup) -> Iterator[tuple[str, str]]:
    """Each command with the first sentence of its help."""
    for name, command in _all_commands("foretell", foretell):
        arguments = [_argument(p) for p in command.params if isinstance(p, TyperArgument)]
        what = _line(command.help).split(". ")[0].rstrip(".")
        yield f"`{' '.join((name, *arguments))}`", f"{what}."


def _all_commands(name: str, command: object) -> Iterator[tuple[str, TyperCommand]]:
    if isinstance(command, TyperGroup):
        for child, found in sorted(command.commands.items()):
            yield from _all_commands(f"{name} {child}", found)
        return
    assert isinstance(command, TyperCommand), name
    yield name, command


def _argument(argument: TyperArgument) -> str:
    name = (argument.name or "").upper()
    return name if argument.required else f"[{name}]"


def _line(text: str | None) -> str:
    return " ".join((text or "").split())


def _metrics() -> Iterator[str]:
    """One line per metric; metrics of every process are listed once."""
    processes = by_process()
    everywhere = [each for each in processes["scheduler"] if each in processes["batch"]]
    for process, found in (*processes.items(), ("every process", everywhere)):
        yield f"### {process.capitalize()}"
        own = [each for each in found if found is everywhere or each not in everywhere]
        yield _list(map(_metric, own))


def _metric(metric: Metric) -> tuple[str, str]:
    labels = f"{{{', '.join(metric.labels)}}}" if metric.labels else ""
    kind = "" if metric.kind == "gauge" else f" {metric.kind}"
    formula = f" Formula: {metric.formula}." if metric.formula else ""
    return f"`{metric.name}{labels}`{kind}", metric.meaning + formula


def _list(rows: Iterable[tuple[str, str]]) -> str:
    return "\n".join(f"- {name}: {text}" for name, text in rows)
