"""Compilation, and where its results are kept."""

from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar, cast

from numba import __version__, config, njit, types

_F = TypeVar("_F", bound=Callable[..., object])
_FOLDER = Path(__file__).parent
_DEFAULT_LEVEL, _LEVEL = 3, 1
if config.OPT == _DEFAULT_LEVEL:  # NUMBA_OPT may name another
    # LLVM's level 1 compiles in a quarter less time, and predictions take as long: up to 7% longer
    # where an engine has 500 requests.
    config.OPT = type(config.OPT)(_LEVEL)


def _cache_folder() -> str:
    """Folder for compiled code, named by a digest of the kernel's sources and Numba's version.

    Numba looks only at a function's own file to see whether its cached code is current, and would
    go on using code into which an older version of another file was inlined. Two versions of Numba
    would forever overwrite each other's code.
    """
    digest = blake2b(__version__.encode(), digest_size=8)
    for source in sorted(_FOLDER.glob("*.py")):
        digest.update(source.read_bytes())
    base = Path(config.CACHE_DIR) if config.CACHE_DIR else _FOLDER / "__pycache__"
    return str(base / f"foretell-{digest.hexdigest()}")


_CACHE_FOLDER = _cache_folder()


# Counting references to the arrays that are passed around was most of the run time.
_WITHOUT_REFERENCES: dict[str, object] = {"_nrt": False}


def compiled(function: _F) -> _F:
    """Compile `function` at its first call, or load what an earlier process compiled.

    Where no folder can be written (NUMBA_CACHE_DIR names another) every process compiles anew.
    The function must not make arrays.
    """
    return _jit(function, _WITHOUT_REFERENCES)


def inlined(function: _F) -> _F:
    """Compile `function` into its callers; otherwise like `compiled`. For small functions."""
    return _jit(function, {"forceinline": True, **_WITHOUT_REFERENCES})


def allocating(function: _F) -> _F:
    """Compile a `function` that may make arrays; otherwise like `compiled`."""
    return _jit(function, {})


def _jit(function: _F, options: dict[str, object]) -> _F:
    options = {"error_model": "numpy", "nogil": True, **options}
    given, config.CACHE_DIR = config.CACHE_DIR, _CACHE_FOLDER
    try:
        made = njit(cache=True, **options)(function)
    except RuntimeError:  # "no locator available"
        made = njit(**options)(function)
    finally:
        config.CACHE_DIR = given
    return cast(_F, _once(made))


def _once(made: Any) -> Any:
    """The dispatcher, which compiled callers find by the types of arguments alone.

    Otherwise Numba compiles what is called with a constant twice, with the constant as a type and
    without, and uses one of them: a third of the time that all compilation took.
    """
    find = made.get_call_template
    made.get_call_template = lambda args, kws: find(
        tuple(map(types.unliteral, args)), {key: types.unliteral(kws[key]) for key in kws}
    )
    return made
