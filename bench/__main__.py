"""Runs the benchmarks.

python -m bench                         what there is
python -m bench ROOM.NAME [ARGUMENTS]   run one
python -m bench --tables [ROOM.NAME]    write tables again, from the numbers of the last runs
python -m bench --readme                write the table of bench/README.md again
"""

import sys
from importlib import import_module
from signal import SIG_DFL, SIGPIPE, signal

from bench.catalogue import answers, benchmarks, names, needs, place, write_readme


def main() -> None:
    """Do what the command line says."""
    match sys.argv[1:]:
        case []:
            show()
        case ["--help" | "-h"]:
            print(__doc__)
        case ["--readme"]:
            write_readme()
        case ["--tables", *wanted]:
            write_tables(wanted)
        case [name, *arguments] if name in names():
            sys.argv = [name, *arguments]
            module = import_module(f"bench.{name}")
            module.BENCH.main(module.measure, module.tables, getattr(module, "arguments", None))
        case [name, *_]:
            raise SystemExit(f"there is no benchmark {name!r}; python -m bench lists them")


def show() -> None:
    """List the benchmarks: the question of each, its command, needs, duration and answer."""
    signal(SIGPIPE, SIG_DFL)  # `python -m bench | head` ends quietly
    for name, benchmark in benchmarks().items():
        files = " and ".join(map(place, answers(benchmark)))
        print(f"\n{' '.join([name, *benchmark.paths])}\n    {benchmark.question}")
        print(f"    It takes {benchmark.takes}; the answer is in {files}.")
        if needs(benchmark):
            print(f"    It needs {needs(benchmark)}.")


def write_tables(wanted: list[str]) -> None:
    """Write the tables of these benchmarks again, or of all."""
    for name in wanted or names():
        module = import_module(f"bench.{name}")
        module.BENCH.write(module.tables(module.BENCH.read()))


if __name__ == "__main__":
    main()
