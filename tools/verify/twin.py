"""What the twin does with a scenario of the replay format.

python -m foretell.tools.verify.twin SCENARIO.json    # as `recorder` beside it, of vLLM
"""

import json
import sys
from pathlib import Path

from foretell.engine.replay import replay
from foretell.engine.scenario import parse_scenario

if __name__ == "__main__":
    scenario = parse_scenario(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    for record in replay(scenario):
        print(json.dumps(record, separators=(",", ":")))  # noqa: T201  the output
