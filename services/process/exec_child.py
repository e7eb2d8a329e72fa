"""`python -m foretell.services.process.exec_child PROGRAM [ARGUMENT...]`: a program that ends
with the process that started it.

For programs that do not call `die_with_parent` themselves, such as vLLM's server.
"""

import os
import sys

from foretell.services.process.runtime import die_with_parent


def main() -> None:
    program, *arguments = sys.argv[1:]
    die_with_parent()
    try:
        os.execvp(program, [program, *arguments])  # noqa: S606
    except OSError as error:
        raise SystemExit(f"cannot run {program}: {error.strerror}") from error


if __name__ == "__main__":
    main()
