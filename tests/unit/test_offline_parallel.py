"""Offline work divided among engines."""

import random

import numpy as np
import pytest

from foretell.offline.lengths import Lengths
from foretell.offline.ordering import blended, demand
from foretell.offline.parallel import parts
from foretell.offline.tree import prefix_tree
from foretell.offline.work import WorkModel

WORK = WorkModel(60e-6, 0.0, 60e-6, 75.6e-9, 9.27e-3)


@pytest.mark.parametrize("engines", [1, 2, 4])
def test_every_request_goes_to_one_engine_and_each_has_its_share(engines: int) -> None:
    for seed in range(10):
        draws = random.Random(seed)
        prompts = [[i % 3] * 64 + [draws.randint(0, 9) for _ in range(64)] for i in range(400)]
        outputs = np.array([draws.choice((2, 90, 3000)) for _ in prompts], np.int64)
        lengths = Lengths.known(outputs)
        tree, order = blended(prefix_tree(prompts), WORK, lengths.mean, lengths.square)
        wanted = demand(tree, WORK, lengths.mean, lengths.square)
        found = parts(tree, order, wanted, engines)
        assert len(found) == engines
        assert sorted(np.concatenate(found).tolist()) == list(range(len(prompts)))
        for seconds in (wanted.compute_s[: len(prompts)], wanted.memory_s[: len(prompts)]):
            shares = [float(seconds[part].sum()) * engines / seconds.sum() for part in found]
            assert shares == pytest.approx([1.0] * engines, abs=0.25)


def test_fewer_requests_than_engines_leave_some_without() -> None:
    tree, lengths = prefix_tree([[1]]), Lengths.known(np.array([5]))
    wanted = demand(tree, WORK, lengths.mean, lengths.square)
    found = parts(tree, np.array([0]), wanted, 3)
    assert sorted(len(part) for part in found) == [0, 0, 1]
    with pytest.raises(ValueError, match="engines"):
        parts(tree, np.array([0]), wanted, 0)
