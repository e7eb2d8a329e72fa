"""Self-signed certificates."""

import subprocess
from pathlib import Path


def make_certificate(folder: Path, name: str = "foretell") -> tuple[str, str]:
    """The PEM files of a new certificate for 127.0.0.1 and of its key."""
    certificate, key = str(folder / f"{name}.pem"), str(folder / f"{name}.key")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", key, "-out", certificate),
        ],
        check=True,
        capture_output=True,
    )
    return certificate, key
