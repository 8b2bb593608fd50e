"""Certificates for tests of TLS, made by the openssl program."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate that signed itself, for 127.0.0.1, and its key."""

    certificate: Path
    key: Path


def make_certificate(folder: Path, name: str) -> Certificate:
    """A new one, valid for a day."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("openssl is not installed; on Debian: apt-get install openssl")
    made = Certificate(folder / f"{name}.pem", folder / f"{name}.key")
    command = [program, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "1", "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"]
    command += ["-keyout", str(made.key), "-out", str(made.certificate)]
    subprocess.run(command, check=True, capture_output=True, timeout=30)
    return made
