from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from ledger.trial import embedded, embedded_programs
from ledger.trial.embedded import EmbeddedPostgres, EmbeddedPostgresError

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]

# A process that uses the server and then waits to be told how to end.
HOLDER = """
import sys
from pathlib import Path
from ledger.trial.embedded import EmbeddedPostgres

server = EmbeddedPostgres(fsync=False)
print(server.start(Path(sys.argv[1])), file=sys.stderr, flush=True)
sys.stdin.read()
"""


def made_home() -> Iterator[Path]:
    """A short path the server's account can enter (pytest's own are private to root)."""
    path = Path(tempfile.mkdtemp(prefix="ledger-pg-"))
    path.chmod(0o711)
    yield path / "data"
    with EmbeddedPostgres(fsync=False) as server:  # whatever a failed test left running
        if (path / "data" / "cluster").exists():
            server.start(path / "data")
    shutil.rmtree(path)


@pytest.fixture
def fresh_home() -> Iterator[Path]:
    yield from made_home()


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """One for all tests here that leave it in order: initdb takes a second."""
    yield from made_home()


def server_pid(home: Path) -> int:
    return int((home / "cluster" / "postmaster.pid").read_text().splitlines()[0])


def is_up(dsn: str) -> bool:
    try:
        psycopg.connect(dsn).close()
    except psycopg.OperationalError:
        return False
    return True


def execute(dsn: str, statement: str) -> list[tuple]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


class Holder:
    def __init__(self, home: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, home],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stderr
        self.dsn = self.process.stderr.readline().strip()
        assert self.dsn.startswith("postgresql://"), self.dsn + self.process.stderr.read()

    def end(self, signum: int) -> int:
        self.process.send_signal(signum)
        self.process.communicate()
        return self.process.returncode


def test_data_outlives_a_stop(home: Path) -> None:
    with EmbeddedPostgres(fsync=False) as server:
        dsn = server.start(home)
        execute(dsn, "CREATE TABLE kept AS SELECT 42 AS n")
    assert not is_up(dsn)

    with EmbeddedPostgres(fsync=False) as server:
        assert execute(server.start(home), "SELECT n FROM kept") == [(42,)]


def test_only_a_private_socket_leads_to_the_server(home: Path) -> None:
    with EmbeddedPostgres(fsync=False) as server:
        dsn = server.start(home)
        assert execute(dsn, "SHOW listen_addresses") == [("",)]
        for name in ("run", "cluster"):
            assert stat.S_IMODE((home / name).stat().st_mode) == 0o700
        assert stat.S_IMODE((home / "postgres.log").stat().st_mode) == 0o600


def test_commits_are_durable_unless_a_test_says_otherwise(home: Path) -> None:
    with EmbeddedPostgres() as server:
        assert execute(server.start(home), "SHOW fsync") == [("on",)]


def test_server_of_a_killed_process_is_adopted_and_then_stopped(home: Path) -> None:
    holder = Holder(home)
    pid = server_pid(home)
    assert holder.end(signal.SIGKILL) == -signal.SIGKILL
    assert is_up(holder.dsn)

    with EmbeddedPostgres(fsync=False) as server:
        assert server.start(home) == holder.dsn
        assert server_pid(home) == pid
    assert not is_up(holder.dsn)


def test_sigterm_stops_the_server(home: Path) -> None:
    holder = Holder(home)
    assert holder.end(signal.SIGTERM) == 128 + signal.SIGTERM
    assert not is_up(holder.dsn)


def test_server_stays_up_until_its_last_user_leaves(home: Path) -> None:
    holder = Holder(home)
    with EmbeddedPostgres(fsync=False) as server:
        server.start(home)
    assert is_up(holder.dsn)

    holder.end(signal.SIGTERM)
    assert not is_up(holder.dsn)


def test_killed_server_recovers_at_the_next_start(home: Path) -> None:
    with EmbeddedPostgres(fsync=False) as server:
        execute(server.start(home), "CREATE TABLE written AS SELECT 42 AS n")
        os.kill(server_pid(home), signal.SIGQUIT)  # immediate shutdown: as after a crash

    with EmbeddedPostgres(fsync=False) as server:
        assert execute(server.start(home), "SELECT n FROM written") == [(42,)]


def test_interrupted_initialisation_is_begun_again(fresh_home: Path) -> None:
    (fresh_home / "cluster.new").mkdir(parents=True)
    (fresh_home / "cluster.new" / "PG_VERSION").write_text("18\n")
    fresh_home.chmod(0o711)

    with EmbeddedPostgres(fsync=False) as server:
        assert is_up(server.start(fresh_home))


def test_socket_goes_elsewhere_where_the_path_is_too_long(fresh_home: Path) -> None:
    long_home = fresh_home.parent / ("d" * 100)
    with EmbeddedPostgres(fsync=False) as server:
        dsn = server.start(long_home)
        elsewhere = server._sockets
        assert is_up(dsn)
        assert "d" * 100 not in dsn
        assert stat.S_IMODE(elsewhere.stat().st_mode) == 0o700
    assert not elsewhere.exists()


def test_socket_directory_of_somebody_else_is_refused(fresh_home: Path) -> None:
    elsewhere = fresh_home.parent / "elsewhere"
    elsewhere.mkdir()
    fresh_home.mkdir(mode=0o711)
    (fresh_home / "run").symlink_to(elsewhere)

    with pytest.raises(EmbeddedPostgresError, match="not private"):
        EmbeddedPostgres().start(fresh_home)


@pytest.mark.parametrize(
    "programs", embedded_programs.installations()[1:], ids=lambda p: str(p.bin)
)
def test_every_postgresql_found_here_will_do(
    programs: embedded_programs.Installation, fresh_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "installations", lambda: [programs])
    with EmbeddedPostgres(fsync=False) as server:
        version = execute(server.start(fresh_home), "SHOW server_version_num")
    assert str(version[0][0]).startswith(str(programs.major))


def test_missing_programs_are_explained(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "installations", list)
    with pytest.raises(EmbeddedPostgresError, match=r"attachment-ledger\[embedded\]"):
        EmbeddedPostgres().start(home)


def test_data_of_another_major_version_are_refused(fresh_home: Path) -> None:
    (fresh_home / "cluster").mkdir(parents=True)
    fresh_home.chmod(0o711)
    (fresh_home / "cluster" / "PG_VERSION").write_text("12\n")
    with pytest.raises(EmbeddedPostgresError, match="no programs of PostgreSQL 12"):
        EmbeddedPostgres().start(fresh_home)
    shutil.rmtree(fresh_home)


def test_ordinary_users_data_live_in_their_state_directory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_STATE_HOME", "/home/ada/state")
    assert embedded.default_data_dir() == Path("/home/ada/state/attachment-ledger")
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/home/ada")
    assert embedded.default_data_dir() == Path("/home/ada/.local/state/attachment-ledger")


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root changes the account")


@as_root
def test_root_runs_the_server_as_nobody(home: Path) -> None:
    with EmbeddedPostgres(fsync=False) as server:
        server.start(home)
        owner = Path(f"/proc/{server_pid(home)}").stat().st_uid
    assert owner == 65534


@as_root
def test_no_other_user_of_the_machine_is_let_in_not_even_the_servers_own(home: Path) -> None:
    """Other programs run as `nobody`, too."""
    twice = (
        "import os, sys, psycopg\n"
        "psycopg.connect(sys.argv[1]).close()\n"
        "os.setuid(65534)\n"
        "psycopg.connect(sys.argv[1])"
    )
    with EmbeddedPostgres(fsync=False) as server:
        command = [sys.executable, "-c", twice, server.start(home)]
        ended = subprocess.run(command, check=False, capture_output=True, text=True)
    assert "line 4, in <module>" in ended.stderr
    assert "Peer authentication failed" in ended.stderr


@as_root
def test_programs_out_of_the_accounts_reach_are_copied_and_no_mode_is_changed(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundled = next((each for each in embedded_programs.installations() if each.root), None)
    if bundled is None or bundled.root is None:
        pytest.skip("the embedded extra is not installed")
    private = home.parent / "private"
    private.mkdir(mode=0o700)
    install = bundled.bin.parent.relative_to(bundled.root)
    for part in (install, install.parent.with_suffix(".libs")):
        shutil.copytree(bundled.root / part, private / part, symlinks=True)
    hidden = embedded_programs.Installation(bundled.version, private / install / "bin", private)
    monkeypatch.setattr(embedded, "installations", lambda: [hidden])

    with EmbeddedPostgres(fsync=False) as server:
        dsn = server.start(home)
        program = Path(f"/proc/{server_pid(home)}/exe").readlink()
        assert is_up(dsn)

    assert program.is_relative_to(home / f"postgresql-{bundled.version}")
    assert stat.S_IMODE(private.stat().st_mode) == 0o700


@as_root
def test_data_directory_out_of_the_accounts_reach_is_refused(fresh_home: Path) -> None:
    fresh_home.parent.chmod(0o700)
    with pytest.raises(EmbeddedPostgresError, match="cannot enter"):
        EmbeddedPostgres().start(fresh_home)
    assert stat.S_IMODE(fresh_home.parent.stat().st_mode) == 0o700
