"""The documentation mentions only what exists, and has no table twice."""

import re
import shlex
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path
from textwrap import dedent
from xml.etree import ElementTree as ET

import pytest
import typer
from typer.core import TyperCommand, TyperGroup

from foretell.cli.main import app
from foretell.config import ALL_SETTINGS
from foretell.config.cluster import parse_cluster
from foretell.config.keys import read_api_keys
from foretell.policy import POLICIES
from foretell.tools import reference
from foretell.tools.observability.catalogue import catalogue

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
REFERENCE = ROOT / "docs" / "reference.md"
SHELF = [README, *sorted(p for p in (ROOT / "docs").glob("*.md") if p != REFERENCE)]
"""What users read: pages written by hand."""
FOLDERS = ("docs", "tests", "bench", "foretell", "services")
PAGES = sorted([*ROOT.glob("*.md"), *(p for f in FOLDERS for p in (ROOT / f).rglob("*.md"))])
PICTURES = sorted((ROOT / "docs").rglob("*.svg"))

_LINK = re.compile(r"!?\[[^\]]*\]\(([^()\s]+)\)")
_CODE_BLOCK = re.compile(r"^\s*```(?P<info>.*?)\n(?P<code>.*?)^\s*```", re.MULTILINE | re.DOTALL)
_CODE_SPAN = re.compile(r"`([^`\n]+)`")
_HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)
_TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)
# Home directories, and other places where this project happens to be checked out.
_FOREIGN_PATH = re.compile(rf"(?<![\w.~])/(?:{'|'.join(('home', 'root', 'Users', 'work'))})/")
_METRIC = re.compile(r"\bforetell_[a-z0-9_]+")
_METRIC_PARTS = re.compile(r"_(?:bucket|count|sum)$")
_VARIABLE = re.compile(r"\bFORETELL_[A-Z0-9_]*[A-Z0-9]")
_TARGET = re.compile(r"(?<![\w-])make ([a-z][a-z-]*)")
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
_COMMAND = re.compile(r"(?:^|[ /])foretell ((?:[a-z-]+ ?)+.*)")
_MODULE = re.compile(r"-m ((?:foretell|services|tools|cli|bench|tests)[\w.]*)")
_HEADER = re.compile(r"\bx-foretell-[a-z0-9-]*[a-z0-9](?![a-z0-9-]*\*)")

COMMAND_VARIABLES = {"FORETELL_API_KEY", "FORETELL_IMAGE", "FORETELL_VERSION"}
"""Variables of the command line and of compose files, not of a service."""
FOREIGN_COMMANDS = re.compile(
    r"^\s*(?:\S+=\S+ )*(?:vllm|docker|pip|git|curl|pytest|python|cp|make|kubectl|helm)\b"
)
FOREIGN_FLAGS = {
    "--api-key",
    "--build",
    "--chunked-prefill-size",
    "--enable-prompt-tokens-details",
    "--data-parallel-address",
    "--data-parallel-hybrid-lb",
    "--data-parallel-rank",
    "--data-parallel-size",
    "--data-parallel-start-rank",
    "--enforce-eager",
    "--install-completion",
    "--gpu-memory-utilization",
    "--kv-cache-dtype",
    "--max-running-requests",
    "--scheduler-cls",
    "--scheduling-policy",
    "--shutdown-timeout",
    "--strict",
    "--tensor-parallel-size",
    "--wait",
}
"""Flags of vLLM's server, of Docker Compose, of mypy, and of every typer command."""


def broken_links(page: Path, root: Path) -> list[str]:
    """Relative links of `page` that lead to no file of `root`, or to no heading in that file."""
    broken = []
    for link in _LINK.findall(_CODE_BLOCK.sub("", page.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        found = target.exists() and target.is_relative_to(root)
        if not found or (anchor and anchor not in _anchors(target)):
            broken.append(link)
    return broken


def _anchors(page: Path) -> set[str]:
    """The fragments that GitHub generates for the headings of `page`."""
    headings = _HEADING.findall(_CODE_BLOCK.sub("", page.read_text()))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def listed(section: str) -> set[str]:
    """The names that a section of the reference lists."""
    text = REFERENCE.read_text().partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return set(re.findall(r"^- `([^`]+)`: ", text, re.MULTILINE))


def metric_names() -> set[str]:
    return set(catalogue())


def code_lines(text: str) -> Iterator[str]:
    """Lines of code blocks, without comments and with continued lines joined; and code spans."""
    for block in _CODE_BLOCK.finditer(text):
        for line in block["code"].replace("\\\n", " ").splitlines():
            yield line.partition(" #")[0]
    yield from _CODE_SPAN.findall(_CODE_BLOCK.sub("", text))


def command_of(words: list[str]) -> tuple[TyperCommand, list[str]]:
    """The command that `words` after `foretell` call, and its arguments."""
    command = typer.main.get_command(app)
    rest = list(words)
    while isinstance(command, TyperGroup):
        assert rest, f"foretell {' '.join(words)}: which of its commands?"
        assert rest[0] in command.commands, f"foretell {' '.join(words)}: no such command"
        command = command.commands[rest.pop(0)]
    assert isinstance(command, TyperCommand)
    return command, rest


def flags_of(command: TyperCommand) -> set[str]:
    return {flag for option in command.params for flag in (*option.opts, *option.secondary_opts)}


def all_flags() -> set[str]:
    """Every flag of every command and every service."""
    found = {f"--{name.replace('_', '-')}" for s in ALL_SETTINGS for name in s.model_fields}
    pending = [typer.main.get_command(app)]
    while pending:
        command = pending.pop()
        found |= {flag for option in command.params for flag in option.opts}
        if isinstance(command, TyperGroup):
            pending += command.commands.values()
    return found


def table_keys(text: str) -> list[set[str]]:
    """The first cells of each table in `text`, without its two header lines."""
    return [
        {line.split("|")[1].strip() for line in table.splitlines()[2:]} - {""}
        for table in _TABLE.findall(text)
    ]


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_lead_somewhere(page: Path) -> None:
    assert not broken_links(page, ROOT)


def test_a_broken_link_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# Is here\n```\n# is not\n```\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](other.md) [b](other.md#is-here) [c](https://example.org/x) ![d](no.svg)\n"
        "[e](other.md#is-not) [f](../outside.md) [g](#nowhere)\n```\n[h](in-code.md)\n```\n"
    )
    (tmp_path.parent / "outside.md").touch()
    assert broken_links(page, tmp_path) == [
        "no.svg",
        "other.md#is-not",
        "../outside.md",
        "#nowhere",
    ]


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_no_path_of_one_machine(page: Path) -> None:
    assert not _FOREIGN_PATH.search(page.read_text())


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_variables_exist(page: Path) -> None:
    known = COMMAND_VARIABLES | {
        f"{settings.model_config.get('env_prefix', '')}{name}".upper()
        for settings in ALL_SETTINGS
        for name in settings.model_fields
    }
    assert set(_VARIABLE.findall(page.read_text())) <= known


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_make_targets_exist(page: Path) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = {name for line in code_lines(page.read_text()) for name in _TARGET.findall(line)}
    assert named <= set(targets)


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_modules_exist(page: Path) -> None:
    named = {name for line in code_lines(page.read_text()) for name in _MODULE.findall(line)}
    assert not [name for name in sorted(named) if find_spec(name) is None]


@pytest.mark.parametrize("page", [*SHELF, ROOT / "CONTRIBUTING.md"], ids=_name)
def test_flags_exist(page: Path) -> None:
    lines = [line for line in code_lines(page.read_text()) if not FOREIGN_COMMANDS.match(line)]
    named = {flag for line in lines for flag in _FLAG.findall(line)}
    assert named <= all_flags() | FOREIGN_FLAGS


@pytest.mark.parametrize("page", SHELF, ids=_name)
def test_commands_exist_and_take_what_they_are_given(page: Path) -> None:
    """Checks whole command lines in blocks; of those in the text only the flags."""
    text = page.read_text()
    blocks = [block["code"] for block in _CODE_BLOCK.finditer(text) if "sh" in block["info"]]
    for line in "\n".join(blocks).replace("\\\n", " ").splitlines():
        if found := _COMMAND.search(line.partition(" #")[0]):
            command, rest = command_of(shlex.split(found[1]))
            command.make_context("foretell", rest)
    for span in _CODE_SPAN.findall(_CODE_BLOCK.sub("", text)):
        if found := re.match(r"foretell ([a-z].*)", span):
            command, rest = command_of(found[1].split())
            assert {word for word in rest if word.startswith("-")} <= flags_of(command), span


@pytest.mark.parametrize("page", SHELF, ids=_name)
def test_metrics_exist(page: Path) -> None:
    xargs = listed("Keys in `vllm_xargs`")
    mentioned = {_METRIC_PARTS.sub("", name) for name in _METRIC.findall(page.read_text())}
    assert mentioned <= metric_names() | xargs


@pytest.mark.parametrize("page", SHELF, ids=_name)
def test_headers_exist(page: Path) -> None:
    named = listed("Request headers") | listed("Response headers")
    assert set(_HEADER.findall(page.read_text())) <= named


def test_every_header_is_in_the_reference() -> None:
    services = [ROOT / "services" / name for name in ("scheduler", "backend")]
    served = (*services, ROOT / "foretell" / "openai")
    sources = "".join(path.read_text() for room in served for path in room.rglob("*.py"))
    named = listed("Request headers") | listed("Response headers")
    assert set(_HEADER.findall(sources)) == {n for n in named if n.startswith("x-foretell-")}


def test_the_reference_is_current() -> None:
    foretell = typer.main.get_command(app)
    assert isinstance(foretell, TyperGroup)
    assert REFERENCE.read_text() == reference.markdown(foretell), (
        "run: foretell reference > docs/reference.md"
    )


def test_everything_in_the_reference_is_described() -> None:
    rows = [row for row in REFERENCE.read_text().splitlines() if row.startswith("- ")]
    assert not [row for row in rows if not row.partition(": ")[2].strip()]


@pytest.mark.parametrize("page", SHELF, ids=_name)
def test_cluster_files_are_valid(page: Path) -> None:
    for block in _CODE_BLOCK.finditer(page.read_text()):
        if block["info"].strip() == "yaml":
            parse_cluster(dedent(block["code"]), _name(page))
        elif block["info"].strip() == "yaml keys":
            assert read_api_keys(dedent(block["code"]))


def test_the_policies_page_has_every_policy() -> None:
    text = (ROOT / "docs" / "policies-and-targets.md").read_text()
    assert not [name for name in POLICIES if f"`{name}`" not in text]


OUTWARD = {
    "foretell/v1",
    "foretell/wire",
    "foretell/config",
    "foretell/services",
    "foretell/tools",
    "foretell/cli",
}
"""Packages that connect the library to the outside, and symbolic links to what is built on it."""


def test_the_structure_page_has_every_package() -> None:
    text = (ROOT / "docs" / "structure.md").read_text()
    named = set(re.findall(r"^\| `([a-z0-9/]+)` \|", text, re.MULTILINE))
    rooms = {
        f"{top}/{package.parent.name}"
        for top in ("foretell", "services")
        for package in (ROOT / top).glob("*/__init__.py")
    }
    assert named == rooms - OUTWARD | {"cli", "tools", "bench"}


def test_no_table_is_told_twice() -> None:
    tables = [(page, keys) for page in SHELF for keys in table_keys(page.read_text())]
    twice = [
        (_name(one), _name(other), sorted(keys & others))
        for (one, keys), (other, others) in combinations(tables, 2)
        if 2 * len(keys & others) >= min(len(keys), len(others)) >= 2
    ]
    assert not twice


def test_a_table_told_twice_is_noticed() -> None:
    first = table_keys(
        "| a | b |\n|---|---|\n| x | 1 |\n| y | 2 |\n\ntext\n\n| c |\n|---|\n| z |\n"
    )
    assert first == [{"x", "y"}, {"z"}]


@pytest.mark.parametrize("picture", PICTURES, ids=_name)
def test_pictures_are_well_formed_and_self_contained(picture: Path) -> None:
    svg = picture.read_text()
    assert ET.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"  # noqa: S314  our own file
    assert "href=" not in svg
    assert "url(http" not in svg
