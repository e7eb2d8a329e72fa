"""The docs name only what exists, and all that they promise to list."""

import re
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from prometheus_client import CollectorRegistry

from foretell.config import ALL_SETTINGS
from foretell.policy import POLICIES
from foretell.telemetry import PredictorMetrics, SchedulerMetrics
from services.tagger.metrics import TaggerMetrics

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("docs", "bench", "tests")
DOCS = sorted([*ROOT.glob("*.md"), *(p for f in FOLDERS for p in (ROOT / f).rglob("*.md"))])
PICTURES = sorted((ROOT / "docs").rglob("*.svg"))

_LINK = re.compile(r"!?\[[^\]]*\]\(([^()\s]+)\)")
_CODE_BLOCK = re.compile(r"^\s*```.*?^\s*```", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)
# Home directories, and the places where this project happens to be checked out.
_FOREIGN_PATH = re.compile(rf"(?<![\w.~])/(?:{'|'.join(('home', 'root', 'Users', 'work'))})/")
_METRIC = re.compile(r"\bforetell_[a-z0-9_]+")
_METRIC_PARTS = re.compile(r"_(?:bucket|count|sum)$")
_VARIABLE = re.compile(r"\bFORETELL_[A-Z0-9_]*[A-Z0-9]")
_CODE_SPAN = re.compile(r"`[^`\n]+`")
_TARGET = re.compile(r"(?<![\w-])make ([a-z][a-z-]*)")

XARGS = {"foretell_id", "foretell_predicted_tokens", "foretell_output_tokens"}
COMMAND_VARIABLES = {"FORETELL_API_KEY"}  # of the command line, not of a service


def broken_links(page: Path, root: Path) -> list[str]:
    """Relative links of `page` that lead to no file of `root`, or to no heading in it."""
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
    """The fragments that GitHub gives to the headings of `page`."""
    headings = _HEADING.findall(_CODE_BLOCK.sub("", page.read_text()))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def metric_names() -> set[str]:
    registries: Iterable[CollectorRegistry] = (
        SchedulerMetrics(CollectorRegistry()).registry,
        PredictorMetrics(CollectorRegistry()).registry,
        TaggerMetrics().registry,
    )
    return {
        family.name + ("_total" if family.type == "counter" else "")
        for registry in registries
        for family in registry.collect()
    }


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", DOCS, ids=_name)
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


@pytest.mark.parametrize("page", DOCS, ids=_name)
def test_no_path_of_one_machine(page: Path) -> None:
    assert not _FOREIGN_PATH.search(page.read_text())


@pytest.mark.parametrize("page", DOCS, ids=_name)
def test_variables_exist(page: Path) -> None:
    known = COMMAND_VARIABLES | {
        f"{settings.model_config.get('env_prefix', '')}{name}".upper()
        for settings in ALL_SETTINGS
        for name in settings.model_fields
    }
    assert set(_VARIABLE.findall(page.read_text())) <= known


@pytest.mark.parametrize("page", DOCS, ids=_name)
def test_make_targets_exist(page: Path) -> None:
    text = page.read_text()
    code = [*_CODE_BLOCK.findall(text), *_CODE_SPAN.findall(text)]
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {name for part in code for name in _TARGET.findall(part)} <= set(targets)


def test_every_metric_is_documented_and_no_other() -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    mentioned = {_METRIC_PARTS.sub("", name) for name in _METRIC.findall(text)} - XARGS
    assert mentioned == metric_names()


def test_every_policy_is_documented() -> None:
    for page in ("README.md", "docs/policies.md"):
        text = (ROOT / page).read_text()
        assert not [name for name in POLICIES if f"`{name}`" not in text], page


@pytest.mark.parametrize("picture", PICTURES, ids=_name)
def test_pictures_are_well_formed_and_self_contained(picture: Path) -> None:
    svg = picture.read_text()
    assert ET.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"  # noqa: S314  our own file
    assert "href=" not in svg
    assert "url(http" not in svg
