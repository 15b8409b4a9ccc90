"""`make images` builds both, on a Debian 12 of debootstrap; the service's serves.

What runs in one has the network of this machine and is in a chroot (buildah's isolation), which
needs no right that a build does not need.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import yaml  # type: ignore[import-untyped]
from psycopg.conninfo import conninfo_to_dict

from ledger.trial.cloud import free_port
from tests.doubles.cut_lines import cut_lines
from tests.doubles.running_cinder import running_cinder
from tests.doubles.simulated_keystone import PASSWORD, SimulatedKeystone, running_keystone
from tests.stack import eventually

ROOT = Path(__file__).parents[2]
WANTED = ("buildah", "debootstrap", "pkg-config")
#: For a machine that may not raise limits, and mounts both versions of cgroups, which crun refuses.
CONTAINERS = """\
[containers]
default_ulimits = ["nofile=2000:2000", "nproc=4096:4096"]
[engine]
runtime = "runc"
"""
STORAGE = '[storage]\ndriver = "vfs"\ngraphroot = "{0}/images"\nrunroot = "{0}/run"\n'
#: Until a database was made and upgraded, and Prometheus has asked for the first time, in seconds.
READY_S = 180.0
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())
#: What the test of it needs; Debian's Podman finds its own network programs there.
COMPOSED = (
    *("/usr/bin/podman-compose", "/usr/sbin/runc"),
    *("/usr/lib/podman/netavark", "/usr/lib/podman/aardvark-dns"),
)
#: In place of the images of others, which no registry gives: Debian's packages, asked the same way.
OTHERS = {
    "postgresql": r"""
RUN apt-get update && apt-get install --yes --no-install-recommends postgresql \
    && install -d -o postgres /var/lib/postgresql/data
ENV PATH=/usr/lib/postgresql/15/bin:/usr/bin:/bin PGDATA=/var/lib/postgresql/data/db
USER postgres
ENTRYPOINT ["sh", "-ec", "echo $POSTGRES_PASSWORD >/tmp/password; \
    initdb --username=$POSTGRES_USER --pwfile=/tmp/password --auth=scram-sha-256 --encoding=UTF8; \
    echo CREATE DATABASE $POSTGRES_USER | postgres --single postgres; \
    echo host all all all scram-sha-256 >>$PGDATA/pg_hba.conf; \
    exec postgres -c listen_addresses='*'"]
""",
    "prometheus": r"""
RUN apt-get update && apt-get install --yes --no-install-recommends prometheus \
    && install -d -o nobody /prometheus
USER nobody
ENTRYPOINT ["prometheus", "--config.file=/etc/prometheus/prometheus.yml", \
    "--storage.tsdb.path=/prometheus"]
""",
}
Shell = Callable[[str], str]

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
        (home / "containers.conf").write_text(CONTAINERS)
        own = {
            "CONTAINERS_STORAGE_CONF": str(home / "storage.conf"),
            "CONTAINERS_CONF": str(home / "containers.conf"),
            "BUILDAH_ISOLATION": "chroot",
        }
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
    container, held = buildah.made("attachment-ledger"), ExitStack()
    port = free_port(held)
    given = {
        "DATABASE_URL": dsn,
        "CINDER__ENDPOINT": "http://127.0.0.1:9/v3",
        "LISTEN__PORT": str(port),
    }
    home = conninfo_to_dict(dsn)["host"]
    words = [f"--env=LEDGER_{name}={value}" for name, value in given.items()]
    program = ["run", *words, f"--volume={home}:{home}", container, "--", "attachment-ledger"]
    buildah(*program, "db", "upgrade")
    serve = ["buildah", *program, "serve"]
    with held, subprocess.Popen(serve, env=buildah.environ, start_new_session=True) as process:
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


def own_address() -> str:
    """Of this machine, as a container reaches it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        return str(probe.getsockname()[0])


@pytest.fixture
def operator(buildah: Buildah, tmp_path: Path) -> Iterator[Shell]:
    """Who types docs/containers.md in a checkout; the images of others are replaced by Debian's."""
    for name, recipe in OTHERS.items():
        (tmp_path / "Containerfile").write_text(f"FROM localhost/bookworm\n{recipe}")
        image = COMPOSE["services"][name]["image"]
        buildah("build", "-t", image, str(tmp_path))
    for name in ("deploy", "docs"):
        shutil.copytree(ROOT / name, tmp_path / name)
    given = {"POSTGRES_PASSWORD": "lettersanddigits1", "GRAFANA_PASSWORD": "any"}

    def shell(line: str) -> str:
        command = ["bash", "-ec", line]
        environ = {**buildah.environ, **given}
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=tmp_path, env=environ, check=False
        )
        assert done.returncode == 0, f"{line}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
        return done.stdout

    yield shell
    told = "podman ps -a; for each in $(podman ps -aq); do podman logs --tail 20 $each; done 2>&1"
    sys.stdout.write(shell(told))
    shell("podman-compose -f deploy/compose.yaml down -v")


def edit(settings: Path, keystone: SimulatedKeystone) -> None:
    """What an operator does with a copy of the sample."""
    text = settings.read_text().replace("https://keystone.example.org", keystone.url)
    settings.write_text(text.replace('"..."', f'"{PASSWORD.format("ledger")}"'))


def prometheus(query: str) -> list[float]:
    url = f"http://127.0.0.1:9090/api/v1/query?{urlencode({'query': query})}"
    try:
        with urlopen(url, timeout=5) as answer:
            return [float(row["value"][1]) for row in json.load(answer)["data"]["result"]]
    except OSError:
        return []


@pytest.mark.skipif(
    not all(map(os.path.exists, COMPOSED)), reason="needs podman-compose, runc, netavark"
)
def test_a_service_is_watched_on_one_machine(operator: Shell, tmp_path: Path) -> None:
    """But for Grafana, of which Debian has no package."""
    page = (ROOT / "docs/containers.md").read_text().split("## A service that is watched")[1]
    [apt, install, _edit, begin, curl] = re.findall(
        r"^[#$] (.+)$", page.split("```")[1], re.MULTILINE
    )
    assert all(program in apt for program in ("podman-compose", "netavark", "aardvark-dns"))
    with (
        running_cinder(host=own_address()) as cinder,
        running_keystone(host=own_address()) as keystone,
    ):
        keystone.catalog["volumev3"] = cinder.endpoint
        keystone.user("ledger", "service", "admin", project="service")
        operator(install)
        edit(tmp_path / "deploy/compose/ledger.toml", keystone)
        operator(f"{begin} postgresql upgrade ledger prometheus")
        eventually(lambda: answers("http://127.0.0.1:8790/readyz"), "it is ready", READY_S)
        assert '"status":"ok"' in operator(curl)
        up = 'up{job="attachment-ledger"}'
        eventually(lambda: prometheus(up) == [1.0], "Prometheus asks it", READY_S)
        assert prometheus('ledger_ready{check="database"}') == [1.0]
