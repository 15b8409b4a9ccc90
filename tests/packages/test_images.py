"""`make images` builds both, on a Debian 12 of debootstrap; the service's serves.

What runs in one has the network of this machine and is in a chroot (buildah's isolation), which
needs no right that a build does not need.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.doubles.cut_lines import cut_lines
from tests.stack import eventually, free_port

ROOT = Path(__file__).parents[2]
WANTED = ("buildah", "debootstrap", "pkg-config")
STORAGE = '[storage]\ndriver = "vfs"\ngraphroot = "{0}/images"\nrunroot = "{0}/run"\n'

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(
        os.geteuid() != 0 or not all(map(shutil.which, WANTED)),
        reason="needs root on Debian, buildah and debootstrap",
    ),
]


class Buildah:
    """Images below a directory."""

    def __init__(self, home: Path) -> None:
        (home / "storage.conf").write_text(STORAGE.format(home))
        own = {"CONTAINERS_STORAGE_CONF": str(home / "storage.conf"), "BUILDAH_ISOLATION": "chroot"}
        self.environ = {**os.environ, **own}

    def __call__(self, *words: str | Path) -> str:
        """Its output; of what a container says, buildah 1.28 may lose some, but no exit code."""
        done = subprocess.run(
            ["buildah", *words], check=True, capture_output=True, text=True, env=self.environ
        )
        return done.stdout.strip()

    def made(self, image: str) -> str:
        """A container of the image."""
        return self("from", "--pull-never", f"localhost/{image}")


@pytest.fixture(scope="module")
def buildah(tmp_path_factory: pytest.TempPathFactory) -> Buildah:
    home = tmp_path_factory.mktemp("images")
    buildah, base = Buildah(home), home / "bookworm"
    subprocess.run(["debootstrap", "--variant=minbase", "bookworm", base], check=True)
    scratch = buildah("from", "scratch")
    buildah("add", scratch, base, "/")
    buildah("commit", scratch, "localhost/bookworm")
    make = ["make", "-C", str(ROOT), "images", "BASE=localhost/bookworm"]
    subprocess.run(make, check=True, env=buildah.environ)
    return buildah


@pytest.fixture
def dsn(empty_database_url: str) -> Iterator[str]:
    """A database for a user whom the server does not know: asked by this process."""
    with tempfile.TemporaryDirectory(prefix="image-") as made:  # the path of a socket is short
        home = Path(made)
        with cut_lines(empty_database_url, home) as lines:
            home.chmod(0o711)
            for each in home.iterdir():
                each.chmod(0o777)
            yield lines.dsn


@pytest.fixture
def url(buildah: Buildah, dsn: str) -> Iterator[str]:
    """Of a service in a container, on a database that its own `db upgrade` has made."""
    container, port = buildah.made("attachment-ledger"), free_port()
    given = {
        "DATABASE_URL": dsn,
        "CINDER__ENDPOINT": "http://127.0.0.1:9/v3",
        "LISTEN__PORT": str(port),
    }
    home = conninfo_to_dict(dsn)["host"]
    words = [f"--env=LEDGER_{name}={value}" for name, value in given.items()]
    program = ["run", *words, f"--volume={home}:{home}", container, "--", "attachment-ledger"]
    buildah(*program, "db", "upgrade")
    with subprocess.Popen(
        ["buildah", *program, "serve"], env=buildah.environ, start_new_session=True
    ) as process:
        yield f"http://127.0.0.1:{port}"
        os.killpg(process.pid, signal.SIGTERM)


def answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_the_service_runs_as_an_ordinary_user_and_serves(buildah: Buildah, url: str) -> None:
    container = buildah.made("attachment-ledger")
    buildah("run", container, "--", "sh", "-c", 'test "$(id --user)" = 8790')
    eventually(lambda: answers(f"{url}/healthz"), "a service in a container")


def test_the_agents_image_has_what_os_brick_calls(buildah: Buildah) -> None:
    container = buildah.made("attachment-ledger-agent")
    python = "/opt/attachment-ledger-agent/bin/python"
    buildah("run", container, "--", python, "-c", "import libvirt, os_brick, host_agent.__main__")
    for tool in ("iscsiadm", "multipath", "nvme", "lsscsi", "mount.nfs", "cryptsetup", "qemu-img"):
        buildah("run", container, "--", "which", tool)
