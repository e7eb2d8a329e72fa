"""`python -m foretell.services.process.program PROGRAM ARGUMENTS` runs a program that is not ours.

It ends with the supervisor that started it, as our own processes do.
"""

import os
import sys

from foretell.services.process.runtime import die_with_parent


def main() -> None:
    die_with_parent()
    os.execv(sys.argv[1], sys.argv[1:])  # noqa: S606 - a supervisor says which


if __name__ == "__main__":
    main()
