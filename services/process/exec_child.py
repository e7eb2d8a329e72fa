"""`python -m services.process.exec_child PARENT_PID PROGRAM [ARGUMENT...]`: tie a program to us.

Asks Linux for a SIGTERM when the parent ends and becomes the program; the request survives exec.
For programs that cannot ask by themselves, such as vLLM's server.
"""

import os
import sys

from services.process.runtime import die_with_parent


def main() -> None:
    parent_pid, program, *arguments = sys.argv[1:]
    die_with_parent()
    # The parent may have ended before the request was made: then no signal will ever come.
    if os.getppid() != int(parent_pid):
        raise SystemExit("the parent process has already ended")
    try:
        os.execvp(program, [program, *arguments])  # noqa: S606
    except OSError as error:
        raise SystemExit(f"cannot run {program}: {error.strerror}") from error


if __name__ == "__main__":
    main()
