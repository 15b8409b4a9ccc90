"""Certificates and keys in files: what is wrong is told, and replaces nothing."""

from __future__ import annotations

import asyncio
import os
import ssl
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from host_agent.shared.platform import tls
from host_agent.shared.platform.settings import ConfigError
from host_agent.shared.platform.tls import Validity, Watched
from ledger.auth.tls import ServiceTls
from ledger.config import Listen
from tests.authority import Authority, Pair, replace

DAY_S = 86_400.0


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "ca")


@dataclass
class Files:
    """A pair that is in use, and its authority."""

    pair: Pair
    authority: Authority
    now_s: float

    def service(self) -> ServiceTls:
        watched = Watched(self.pair.certificate, self.pair.key, every_s=0.0)
        return ServiceTls(Listen(**self.pair.files), lambda: self.now_s, watched)


@pytest.fixture
def files(tmp_path: Path, authority: Authority) -> Files:
    pair = Pair(tmp_path / "own.pem", tmp_path / "own.key")
    pair.put(authority.pair("ledger.example"))
    return Files(pair, authority, time.time())


def told(service: ServiceTls) -> str | None:
    return asyncio.run(service.warning())


def renewed(service: ServiceTls) -> None:
    """As it is looked twice: what has changed is left alone until it rests."""
    service.look()
    service.look()


def _encrypt(files: Files) -> None:
    key = files.pair.key
    command = ["openssl", "pkey", "-aes128", "-passout", "pass:hunter2", "-in", str(key)]
    replace(key, subprocess.run(command, capture_output=True, check=True).stdout)


def _directory(files: Files) -> None:
    files.pair.key.unlink()
    files.pair.key.mkdir()


HALF = b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
BREAK: dict[str, tuple[Callable[[Files], object], str]] = {
    "another key": (
        lambda files: replace(files.pair.key, files.authority.pair("x").key.read_bytes()),
        "is not the key of",
    ),
    "no key": (lambda files: replace(files.pair.key, b"-----BEGIN"), "cannot be used: "),
    "key with a passphrase": (_encrypt, "has a passphrase"),
    "key is gone": (lambda files: files.pair.key.unlink(), "No such file"),
    "key is a directory": (
        _directory,
        "Is a directory",
    ),
    "key for everybody": (lambda files: files.pair.key.chmod(0o644), "holds a secret"),
    "no certificate": (
        lambda files: replace(files.pair.certificate, b"hello"),
        "holds no certificate in PEM",
    ),
    "half a certificate": (
        lambda files: replace(files.pair.certificate, HALF),
        "holds what is no certificate",
    ),
    "certificate has ended": (
        lambda files: files.pair.put(files.authority.pair("x", days=-1, since=-3)),
        "it ended at",
    ),
    "certificate has not begun": (
        lambda files: files.pair.put(files.authority.pair("x", since=1)),
        "it begins at",
    ),
}


@pytest.mark.parametrize("how", BREAK)
def test_what_cannot_be_used_replaces_nothing_and_is_told_without_the_key(
    files: Files, how: str
) -> None:
    service = files.service()
    good, (spoil, words) = service.context.newest, BREAK[how]
    spoil(files)
    renewed(service)
    assert service.context.newest is good
    warning = told(service)
    assert warning is not None
    assert words in warning
    assert "hunter2" not in warning
    assert "PRIVATE KEY" not in warning
    assert [sample.samples[0].value for sample in service.collect()][1] == 1


@pytest.mark.parametrize("how", [how for how in BREAK if not how.startswith("certificate has")])
def test_nobody_is_served_from_the_start_with_what_cannot_be_used(files: Files, how: str) -> None:
    BREAK[how][0](files)
    with pytest.raises(ConfigError, match=BREAK[how][1]):
        files.service()


def test_a_certificate_that_has_ended_is_better_than_none_and_than_one_that_ended_before(
    files: Files,
) -> None:
    files.now_s += 90 * DAY_S
    service = files.service()
    assert "is not valid: it ended at" in str(told(service))
    assert next(iter(service.collect())).samples[0].value < 0
    files.pair.put(files.authority.pair("x", days=40))
    renewed(service)
    assert service.context.newest.validity.ends.timestamp() < files.now_s, "taken, for want of one"


def test_a_renewed_pair_is_taken_when_both_files_are_there(files: Files) -> None:
    service, new = files.service(), files.authority.pair("x", days=60)
    before = service.context.newest
    replace(files.pair.certificate, new.certificate.read_bytes())
    renewed(service)
    assert service.context.newest is before, "a certificate whose key is still to come"
    replace(files.pair.key, new.key.read_bytes())
    renewed(service)
    assert service.context.newest is not before
    assert told(service) is None


def test_an_end_is_told_seven_days_before_it_or_when_a_third_is_left(files: Files) -> None:
    service = files.service()
    ends_s = service.context.newest.validity.ends.timestamp()
    files.now_s = ends_s - 7 * DAY_S - 60
    assert told(service) is None
    files.now_s = ends_s - 7 * DAY_S + 60
    assert "in 7.0 days" in str(told(service))
    begins = datetime(2026, 1, 1, tzinfo=UTC)
    short = Validity(begins, begins + timedelta(days=3))
    assert not short.is_ending(begins.timestamp() + 1.9 * DAY_S)
    assert short.is_ending(begins.timestamp() + 2.1 * DAY_S)


def test_of_a_chain_the_first_end_counts(files: Files, tmp_path: Path) -> None:
    chain = tmp_path / "chain.pem"
    short = files.authority.pair("x", days=2).certificate.read_bytes()
    chain.write_bytes(files.pair.certificate.read_bytes() + short)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ends = tls.show(context, str(chain), str(files.pair.key)).ends
    assert ends.timestamp() == pytest.approx(files.now_s + 2 * DAY_S, abs=60)


def test_a_list_of_what_is_revoked_has_an_end_that_is_told(files: Files, tmp_path: Path) -> None:
    """After it OpenSSL takes no certificate at all."""
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(files.authority.revoked())
    listen = Listen(client_ca_file=str(trusted), **files.pair.files)
    service = ServiceTls(listen, lambda: files.now_s)
    files.now_s += 3600  # it was begun after the files were
    assert told(service) is None
    files.now_s += 25 * DAY_S
    assert str(told(service)).count("client_ca_file") == 1


def test_authorities_that_are_none_are_refused(tmp_path: Path) -> None:
    for content in (b"", b"hello", HALF):
        (tmp_path / "ca").write_bytes(content)
        with pytest.raises(ConfigError, match="holds no certificate of an authority"):
            tls.trust(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), str(tmp_path / "ca"))


def test_tls_before_1_2_is_not_spoken(files: Files) -> None:
    assert files.service().context.newest.minimum_version is ssl.TLSVersion.TLSv1_2


def test_a_file_is_read_when_it_has_changed_and_rests(tmp_path: Path) -> None:
    now, file = 0.0, tmp_path / "file"
    watched = Watched(file, clock=lambda: now)

    def after(seconds: float) -> bool:
        nonlocal now
        now += seconds
        return watched.changed()

    assert not after(6)
    file.write_text("half")
    assert not after(6), "it may not be whole"
    file.write_text("half, and more")
    assert not after(6), "it was not"
    assert not after(1), "no look so soon"
    assert after(5)
    assert not after(6), "once for each change"
    os.utime(file, ns=(1, 1))
    assert not after(6)
    assert after(6)
    file.unlink()
    assert not after(6)
    assert after(6)
