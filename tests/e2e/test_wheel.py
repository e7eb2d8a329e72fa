"""The wheel that `make wheel` builds has all files of the checkout, and its commands run."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cluster import cluster
from tests.sweeps import WHOLE

pytestmark = [
    pytest.mark.sweep,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not WHOLE, reason="make test-sweeps builds the wheel"),
]
ROOT = Path(__file__).parents[2]
PACKAGES = ("foretell",)
FILES = ("pyproject.toml", "setup.py", "README.md", "LICENSE")
COMPILED = Path("foretell", "kernel", "src")
"""The sources of the extension module, which are not in the wheel."""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder into which the wheel is installed, without its dependencies.

    The build finds no compiler on the PATH: pip fetches one as a wheel.
    """
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(ROOT / name, source)
    pip("wheel", "--no-deps", "--wheel-dir", folder, source, PATH=str(folder))
    (wheel,) = folder.glob("*.whl")
    pip("install", "--no-deps", "--target", folder / "site", wheel)
    return folder / "site"


def pip(*arguments: str | Path, **environment: str) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    subprocess.run(command, check=True, env=os.environ | environment)


@pytest.fixture
def taken(tmp_path: Path) -> Path:
    """A folder with packages named `services`, `tools` and `cli`."""
    for name in ("services", "tools", "cli"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('not ours')\n")
    return tmp_path


def files_of(root: Path) -> set[str]:
    """The packages' files, relative to `root`; links to folders are followed."""
    found = (
        Path(folder, name)
        for package in PACKAGES
        for folder, _, names in os.walk(root / package, followlinks=True)
        for name in names
    )
    left_out = (".pyc", ".nbc", ".nbi", ".md")
    return {
        str(path.relative_to(root))
        for path in found
        if path.suffix not in left_out and path.parent != root / COMPILED
    }


def test_nothing_of_the_packages_is_left_out(installed: Path) -> None:
    assert files_of(installed) == files_of(ROOT)


def test_its_command_runs_where_there_is_no_checkout(installed: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, installed / "bin" / "foretell", "render", "schema"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == (ROOT / "foretell" / "config" / "cluster.schema.json").read_text()


def test_what_it_renders_names_an_image(installed: Path, taken: Path) -> None:
    (taken / "cluster.yaml").write_text("models: {m: {path: org/m}}\nengines: 2\n")
    subprocess.run(
        [sys.executable, installed / "bin" / "foretell", "render", "compose"],
        cwd=taken,
        env={"PYTHONPATH": str(installed)},
        check=True,
    )
    text = (taken / "docker-compose.yml").read_text()
    assert "image: ${FORETELL_IMAGE:-foretell}:" in text
    assert "build:" not in text


def test_a_cluster_runs_and_is_asked(
    installed: Path, taken: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: Any
) -> None:
    monkeypatch.chdir(taken)
    monkeypatch.setenv("PYTHONPATH", str(installed))
    run_dir = tmp_path_factory.mktemp("up")
    command = (sys.executable, installed / "bin" / "foretell")
    with cluster(run_dir, "--engines=1", "--schedulers=1", command=command) as running:
        demo = ("demo", "--rate=5", "--seconds=1")
        for asked, shown in ((demo, "Predicted and actual"), (("status",), "engine-0")):
            done = subprocess.run(
                [*command, *asked, f"--url={running.endpoint}"],
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            assert shown in done.stdout
        mapped = Path("/proc", str(running.component("scheduler-0")["pid"]), "maps").read_text()
        assert str(installed / "foretell" / "kernel") in mapped


def test_one_package_is_installed(installed: Path) -> None:
    """Names such as `services` and `tools` could collide with other packages."""
    packages = [each.name for each in installed.iterdir() if (each / "__init__.py").exists()]
    assert packages == ["foretell"]
