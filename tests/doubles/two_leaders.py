"""Two real PostgreSQL servers, one the synchronous standby of the other; each can be frozen."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from ledger.log import schema
from ledger.trial.embedded import EmbeddedPostgres
from tests.stack import eventually

#: The standby asks its primary again so soon; and a walreceiver's line never times out by itself.
_STANDBY = "primary_conninfo = '{}'\nwal_retrieve_retry_interval = '100ms'\n"
_FOLLOWS = "SELECT true FROM pg_stat_replication WHERE sync_state = 'sync'"


class Node:
    """A server in a directory."""

    def __init__(self, home: Path) -> None:
        home.mkdir()
        home.chmod(0o711)  # as root the server runs as another account
        self.home = home
        self._server = EmbeddedPostgres(fsync=False)
        self._frozen: list[int] = []

    def start(self) -> None:
        self._server = EmbeddedPostgres(fsync=False)
        self.dsn = self._server.start(self.home)

    def stop(self) -> None:
        self.thaw()
        self._server.stop()

    def ask(self, query: str) -> list[Any]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(query.encode())
            return cursor.fetchall() if cursor.description else []

    def freeze(self) -> None:
        """SIGSTOP of the postmaster, then of its children: the kernel still takes connections."""
        pid = int((self.home / "cluster" / "postmaster.pid").read_text().splitlines()[0])
        os.kill(pid, signal.SIGSTOP)
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        self._frozen = [pid, *map(int, children)]
        for each in self._frozen:
            os.kill(each, signal.SIGSTOP)

    def thaw(self) -> None:
        frozen, self._frozen = self._frozen, []
        for each in reversed(frozen):
            os.kill(each, signal.SIGCONT)

    def promote(self) -> None:
        self.ask("ALTER SYSTEM RESET synchronous_standby_names")  # of the copied settings
        assert self.ask("SELECT pg_promote()") == [(True,)]


class TwoLeaders:
    """`dsn` names both, and takes the one that can be written to."""

    def __init__(self, home: Path) -> None:
        self.first, self.second = Node(home / "a"), Node(home / "b")
        self.first.start()
        schema.upgrade(self.first.dsn)
        self.first.stop()
        shutil.copytree(self.first.home / "cluster", self.second.home / "cluster")
        for path in (self.second.home / "cluster", *(self.second.home / "cluster").rglob("*")):
            like = (self.first.home / "cluster").stat()
            os.chown(path, like.st_uid, like.st_gid)
        self.first.start()
        with (self.first.home / "cluster" / "pg_hba.conf").open("a") as hba:
            hba.write("local replication all trust\n")
        self.first.ask("SELECT pg_reload_conf()")
        host = conninfo_to_dict(self.first.dsn)["host"]
        with (self.second.home / "cluster" / "postgresql.auto.conf").open("a") as settings:
            settings.write(_STANDBY.format(f"host={host} user=ledger"))
        (self.second.home / "cluster" / "standby.signal").touch()
        self.second.start()
        self.first.ask("ALTER SYSTEM SET synchronous_standby_names = '*'")
        self.first.ask("SELECT pg_reload_conf()")
        eventually(lambda: self.first.ask(_FOLLOWS), "a synchronous standby")
        hosts = (host, conninfo_to_dict(self.second.dsn)["host"])
        self.dsn = make_conninfo(
            self.first.dsn,
            host=",".join(map(str, hosts)),
            target_session_attrs="read-write",
            connect_timeout=2,
        )

    def stop(self) -> None:
        for node in (self.second, self.first):
            node.stop()


@contextmanager
def two_leaders() -> Iterator[TwoLeaders]:
    home = Path(tempfile.mkdtemp(prefix="al-two-"))  # short: the path of a socket
    home.chmod(0o711)
    try:
        both = TwoLeaders(home)
        try:
            yield both
        finally:
            both.stop()
    finally:
        shutil.rmtree(home)
