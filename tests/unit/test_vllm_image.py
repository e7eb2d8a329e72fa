"""vLLM's image reads the key from a file; with a file but no key the engine does not start."""

import json
import subprocess
from pathlib import Path

import pytest

DOCKERFILE = Path(__file__).parents[2] / "deploy" / "Dockerfile.vllm"


@pytest.mark.parametrize(
    ("variables", "key"),
    [
        ({}, ""),
        ({"VLLM_API_KEY": "plain"}, "plain"),
        ({"VLLM_API_KEY_FILE": "{folder}/key"}, "of the file"),
        ({"VLLM_API_KEY_FILE": "{folder}/missing"}, None),
        ({"VLLM_API_KEY_FILE": "/dev/null"}, None),
    ],
)
def test_the_engine_gets_its_key_or_does_not_start(
    tmp_path: Path, variables: dict[str, str], key: str | None
) -> None:
    entrypoint = json.loads(DOCKERFILE.read_text().rpartition("ENTRYPOINT")[2])
    program = tmp_path / "vllm"
    program.write_text('#!/bin/sh\necho "$VLLM_API_KEY"; printf "%s\\n" "$@"\n')
    program.chmod(0o755)
    (tmp_path / "key").write_text("of the file\n")
    given = {name: value.format(folder=tmp_path) for name, value in variables.items()}
    done = subprocess.run(
        [*entrypoint, "org/a model", "--flag"],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", **given},
        capture_output=True,
        text=True,
        check=False,
    )
    told = done.stdout.splitlines()
    assert (told[0] if told else None) == key
    assert bool(told) == (done.returncode == 0)
    assert not told or told[-2:] == ["org/a model", "--flag"]
