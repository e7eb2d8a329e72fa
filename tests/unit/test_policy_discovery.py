"""A new policy is one file: no other file has to name it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import foretell
from foretell.policy import POLICIES, make_policy

NEW_POLICY = """
from foretell.policy.base import Needs


class FirstPolicy:
    name = "first"
    needs = Needs.NOTHING
    late_binding = False

    def __init__(self, *, offset: int = 0) -> None:
        self._offset = offset

    def choose(self, request, candidates, draw):
        return candidates[self._offset].instance_id
"""
USE_IT = r"""
from foretell.config.cluster import parse_cluster
from foretell.policy import POLICIES, Candidate, make_policy

assert list(POLICIES) == ["first", "least_outstanding", "round_robin", "slo"], POLICIES
candidates = [Candidate("a"), Candidate("b")]
text = "engines: [{kind: emulated}]\npolicy: {name: first, parameters: {offset: 1}}"
assert parse_cluster(text, "cluster.yaml").policy.name == "first"
print(make_policy("first", offset=1).choose(None, candidates, 0.0))
"""


def test_a_new_policy_is_one_file(tmp_path: Path) -> None:
    library = tmp_path / "foretell"
    shutil.copytree(Path(foretell.__file__).parent, library)
    (library / "policy" / "first.py").write_text(NEW_POLICY)
    command = [sys.executable, "-P", "-c", USE_IT]
    done = subprocess.run(
        command, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("b\n", "")


def test_operators_choose_from_three() -> None:
    assert set(POLICIES) == {"slo", "least_outstanding", "round_robin"}


def test_an_unknown_name_or_parameter_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"choose one of .* slo, or for comparison .* infaas"):
        make_policy("fastest")
    with pytest.raises(ValueError, match="'slo' has no parameter 'tolerence'; it has tolerance"):
        make_policy("slo", tolerence=0.1)
    with pytest.raises(ValueError, match="'round_robin' has no parameter 'seed'; it has none"):
        make_policy("round_robin", seed=1)
    with pytest.raises(ValueError, match="from 0 to 1, not 5"):
        make_policy("slo", tolerance=5.0)
