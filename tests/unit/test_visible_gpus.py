"""Which GPUs are visible to an engine that the launcher starts."""

from pathlib import Path

import pytest

from foretell.config import LauncherSettings
from foretell.config.cluster import parse_cluster
from foretell.config.layout import Layout
from foretell.services.backend.commands import EnginePaths, engine_program, visible_gpus


@pytest.mark.parametrize(
    ("places", "visible", "expected"),
    [
        ("3", "", "3"),  # all are visible
        ("1", "4,5,6,7", "5"),
        ("2,3", "4,5,6,7", "6,7"),
        ("3", "GPU-a", ""),  # the launcher's parent has chosen
        ("", "4,5", ""),
    ],
)
def test_places_count_among_the_visible(places: str, visible: str, expected: str) -> None:
    assert visible_gpus(places, visible) == expected


def test_every_engine_of_a_host_gets_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    text = "models: {m: {}}\nengines: [{engines: 2, gpus: 2}, {engines: 1}]\n"
    layout = Layout(parse_cluster(text, "test"))
    seen = []
    for engine in layout.cluster.engine_list():
        settings = LauncherSettings(**layout.launcher(engine))
        places = EnginePaths.of(settings, tmp_path, tmp_path)
        seen.append(engine_program(settings, places, 8000).env["CUDA_VISIBLE_DEVICES"])
    assert seen == ["0,1", "2,3", "4"]


def test_an_emulated_engine_sees_what_it_likes(tmp_path: Path) -> None:
    settings = LauncherSettings(gpus="1")
    program = engine_program(settings, EnginePaths.of(settings, tmp_path, tmp_path), 0)
    assert "CUDA_VISIBLE_DEVICES" not in program.env
