"""A verification is kept for that exact installation, in a file that only its user can write."""

from dataclasses import replace
from pathlib import Path

import pytest

from foretell.model import EngineConfig
from foretell.services.backend import verified

ALL = dict.fromkeys(verified.USES, "equal")


def test_an_installation_is_known_by_its_code(tmp_path: Path) -> None:
    core = tmp_path / "v1" / "core" / "sched"
    core.mkdir(parents=True)
    (core / "scheduler.py").write_text("a = 1")
    known = verified.installation(tmp_path, "1.0")
    assert known == verified.installation(tmp_path, "1.0")
    assert known != verified.installation(tmp_path, "1.1")
    (core / "scheduler.py").write_text("a = 2")
    assert known != verified.installation(tmp_path, "1.0")


def test_what_was_found_is_kept_for_this_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.json"
    verified.keep("one", ALL, path)
    verified.keep("two", ALL | {"LoRA": "different"}, path)
    assert verified.verdicts_of("one", path) == ALL
    assert verified.verdicts_of("three", path) is None
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert [each.name for each in path.parent.iterdir()] == ["file.json"]
    path.chmod(0o622)  # others could have written it
    assert verified.verdicts_of("one", path) is None


def test_the_file_does_not_grow(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    for number in range(40):
        verified.keep(str(number), ALL, path)
    kept = [number for number in range(40) if verified.verdicts_of(str(number), path)]
    assert kept == list(range(24, 40))


@pytest.mark.parametrize("content", ["", "[]", "{", '{"one": 3}', "\xff"])
def test_a_broken_file_says_nothing(content: str, tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(content.encode("latin-1"))
    path.chmod(0o600)
    assert verified.verdicts_of("one", path) is None
    verified.keep("one", ALL, path)
    assert verified.verdicts_of("one", path) == ALL


def test_what_an_engine_does_not_use_may_differ() -> None:
    plain = EngineConfig("tiny", 16, 100, 8, 256, 1024, enable_prefix_caching=False)
    differ = ALL | {"LoRA": "different", "prefix caching": "different"}
    assert verified.differs(differ, plain) == []
    assert verified.differs(differ, replace(plain, max_loras=2)) == ["LoRA"]
    assert verified.differs({}, plain) != []
    window = replace(plain, local_kv_cache_groups=1, sliding_window_tokens=8, max_model_len=64)
    assert verified.differs(ALL | {"sliding window": "different"}, window) == ["sliding window"]
