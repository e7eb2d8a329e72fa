"""The placement core does what the scripts in `scripts/` say: each text file is a test."""

from pathlib import Path

import pytest
from scripts import FOLDER, read


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_script(path: Path) -> None:
    script = read(path)
    for line, found in script.play():
        where = f"{path.name}:{line.number}: {' '.join(line.words)}"
        if line.expected != ["..."]:
            assert found == line.expected, where


def test_a_line_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.txt"
    path.write_text("policy slo\n0.0 up engine-0\nsoon up engine-1\n")
    with pytest.raises(ValueError, match=r"bad\.txt:3: 'soon up engine-1'"):
        read(path)
