"""A certificate authority for the tests, made by openssl."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest

_CONFIG = """
[ca]
default_ca = here
[here]
database = {home}/index
new_certs_dir = {home}
serial = {home}/serial
crlnumber = {home}/serial
certificate = {home}/ca.pem
private_key = {home}/ca.key
default_md = sha256
default_crl_days = 30
policy = any
unique_subject = no
copy_extensions = copy
[any]
commonName = optional
"""
_numbers = count()


@dataclass(frozen=True)
class Pair:
    """A certificate and its key."""

    certificate: Path
    key: Path

    @property
    def files(self) -> dict[str, Any]:
        return {"certificate_file": str(self.certificate), "key_file": str(self.key)}

    def put(self, other: Pair) -> None:
        """Replace the files by another's, as a renewal does."""
        for old, new in ((self.certificate, other.certificate), (self.key, other.key)):
            replace(old, new.read_bytes())


def replace(file: Path, content: bytes) -> None:
    """As programs do that leave no half of a file."""
    beside = file.with_suffix(".new")
    beside.touch(mode=0o600)
    beside.write_bytes(content)
    beside.replace(file)


class Authority:
    """Signs, revokes; `certificate` is what believes in it needs."""

    def __init__(self, home: Path, name: str = "test") -> None:
        self._home = home
        home.mkdir()
        (home / "index").touch()
        (home / "serial").write_text("01")
        (home / "config").write_text(_CONFIG.format(home=home))
        self.certificate, key = home / "ca.pem", home / "ca.key"
        _openssl(
            *("req", "-x509", "-days", "3650", "-subj", f"/CN={name}"),
            *(*_new_key(key), "-out", self.certificate),
        )

    def pair(self, *names: str, days: float = 30.0, since: float = -1.0, common: str = "x") -> Pair:
        """For these names, of DNS if they do not say; `since`, `days`: from now, in days."""
        number = next(_numbers)
        asked, made = self._home / f"{number}.csr", self._home / f"{number}.pem"
        key = self._home / f"{number}.key"
        san = ",".join(name if ":" in name else f"DNS:{name}" for name in names)
        extension = ("-addext", f"subjectAltName={san}") if names else ()
        _openssl("req", *_new_key(key), "-subj", f"/CN={common}", *extension, "-out", asked)
        dates = ("-startdate", _date(since), "-enddate", _date(days))
        self._ca("-in", asked, "-out", made, "-batch", "-notext", *dates)
        return Pair(made, key)

    def revoked(self, *pairs: Pair) -> bytes:
        """The authority, with a list of what it has revoked."""
        for pair in pairs:
            self._ca("-revoke", pair.certificate)
        self._ca("-gencrl", "-out", self._home / "crl.pem")
        return self.certificate.read_bytes() + (self._home / "crl.pem").read_bytes()

    def _ca(self, *arguments: str | Path) -> None:
        _openssl("ca", "-config", self._home / "config", *arguments)


def _new_key(file: Path) -> tuple[str | Path, ...]:
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
    return (*curve, "-nodes", "-keyout", file)


def _date(days: float) -> str:
    return f"{datetime.now(UTC) + timedelta(days=days):%Y%m%d%H%M%SZ}"


def _openssl(*arguments: str | Path) -> None:
    program = shutil.which("openssl")
    if program is None and os.environ.get("CI") != "true":
        pytest.skip("openssl is not installed")
    assert program, "these tests need openssl"
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
