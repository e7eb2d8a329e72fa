"""Builds the compiled kernel; everything else is in pyproject.toml.

With the machine's C++ compiler, CXX or the first that is found. Where there is none the compiler
comes as a wheel: then this asks for `ziglang`, which the build environment gets.
"""

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

SOURCES = Path("foretell", "kernel", "src")
COMPILERS = ("c++", "g++", "clang++")
# The instructions of the first CPUs of an architecture, and no fused arithmetic: results are the
# same on every machine. One translation unit, so that all may be inlined; nothing of C++'s library.
FLAGS = [
    "-std=c++17",
    "-O2",
    "-ffp-contract=off",
    "-fwrapv",
    "-fno-math-errno",
    "-fno-exceptions",
    "-fno-rtti",
    "-fvisibility=hidden",
    "-fPIC",
    "-shared",
    "-g0",
]
OLDEST_GLIBC = "2.17"


def compiler() -> list[str] | None:
    """The command of the machine's C++ compiler, if it has one that works."""
    named = os.environ.get("CXX")
    for command in (named.split(),) if named else ([name] for name in COMPILERS):
        if shutil.which(command[0]) and _compiles(command):
            return [*command, "-Wl,--as-needed"]
    return None


def _compiles(command: list[str]) -> bool:
    program = "#include <stdint.h>\nstatic_assert(sizeof(int64_t) == 8);"
    arguments = ["-std=c++17", "-x", "c++", "-fsyntax-only", "-"]
    made = subprocess.run(
        [*command, *arguments], input=program.encode(), capture_output=True, check=False
    )
    return made.returncode == 0


def zig() -> list[str]:
    """The command of the compiler that comes as a wheel."""
    target = f"{platform.machine()}-linux-gnu.{OLDEST_GLIBC}"
    return [sys.executable, "-m", "ziglang", "c++", "-target", target, "-nostdlib++"]


class Build(build_ext):
    """One call of the compiler, which takes some seconds."""

    def build_extension(self, ext: Extension) -> None:
        made = Path(self.get_ext_fullpath(ext.name))
        made.parent.mkdir(parents=True, exist_ok=True)
        paths = sysconfig.get_paths()
        include = {paths["include"], paths["platinclude"]}
        partial = made.with_suffix(f".{os.getpid()}")  # who has loaded the old one keeps it
        command = [
            *(compiler() or zig()),
            *FLAGS,
            *(f"-I{path}" for path in sorted(include)),
            *ext.sources,
            "-lm",
            "-o",
            str(partial),
        ]
        print(*command, flush=True)
        subprocess.run(command, check=True)
        partial.replace(made)


setup(
    ext_modules=[
        Extension(
            "foretell.kernel.compiled",
            [str(SOURCES / "module.cpp")],
            depends=[str(path) for path in sorted(SOURCES.glob("*.h"))],
            py_limited_api=True,
        )
    ],
    cmdclass={"build_ext": Build},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
    setup_requires=[] if compiler() else ["ziglang>=0.13"],
)
