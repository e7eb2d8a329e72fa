"""`python -m foretell.tools.verify FILE SEEDS`: compare all features, and write what was found.

This runs under the engine's Python and writes a line of JSON for each feature to FILE.
"""

import json
import sys
import warnings
from dataclasses import asdict
from pathlib import Path


def main() -> None:
    warnings.simplefilter("ignore")  # those of vLLM
    import vllm

    from foretell.services.backend.verified import installation
    from foretell.tools.verify.compare import compare
    from foretell.tools.verify.features import FEATURES

    path, seeds = Path(sys.argv[1]), int(sys.argv[2])
    key = installation(Path(vllm.__file__).parent, vllm.__version__)
    with path.open("w") as file:
        print(json.dumps({"version": vllm.__version__, "installation": key}), file=file)
        for feature in FEATURES:
            print(json.dumps(asdict(compare(feature, range(seeds)))), file=file, flush=True)


if __name__ == "__main__":
    main()
