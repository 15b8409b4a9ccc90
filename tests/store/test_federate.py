"""`db federate`: auditors ask the audit views of several ledgers at once, by postgres_fdw."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest

from ledger.cli.shell import main
from ledger.log import schema
from ledger.log.application import Ledger
from ledger.log.recorder import LedgerRecorder
from ledger.log.roles import grant
from ledger.trial.embedded import EmbeddedPostgres
from ledger.trial.embedded_programs import installations
from projections.catalog import ALL
from projections.running.rights import RoleKind
from projections.running.runner import catch_up
from tests.conftest import roomy
from tests.store.histories import stored_events
from tests.store.test_auditors import QUESTIONS
from tests.world import HOST, World

pytestmark = pytest.mark.slow
PASSWORD = "horse's 'battery' \\ staple"
_HBA = "local all auditor,chief scram-sha-256\n"
#: Auditors' role of the cells, the owner of the auditors' database, and one who reads there.
_ROLES = ("auditor", "chief", "ada")


class Server:
    """A PostgreSQL of its own, which lets auditors in by password, and which can be stopped."""

    def __init__(self, exits: ExitStack) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="fdw-", dir=roomy()))
        exits.callback(shutil.rmtree, self._home)
        self._home.chmod(0o711)
        self._server = EmbeddedPostgres(fsync=False)
        exits.callback(self.stop)
        self.start()
        self.execute("SELECT set_config('password_encryption', 'scram-sha-256', false)")
        for role in _ROLES:
            self.execute(f"CREATE ROLE {role} LOGIN PASSWORD $${PASSWORD}$$")

    def start(self) -> None:
        self.dsn = self._server.start(self._home)
        rules = self._home / "cluster/pg_hba.conf"
        rules.write_text(_HBA + rules.read_text().removeprefix(_HBA))
        self.execute("SELECT pg_reload_conf()")

    def stop(self) -> None:
        self._server.stop()

    @property
    def socket(self) -> str:
        return self.dsn.partition("host=")[2].replace("%2F", "/")

    def execute(self, statement: str, name: str = "postgres") -> list[Any]:
        with psycopg.connect(self.dsn, dbname=name, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def ledger(self, name: str, nth: int) -> str:
        """A ledger that auditors may read, in which the world's nth volume was attached; that."""
        self.execute(f"CREATE DATABASE {name}")
        dsn = psycopg.conninfo.make_conninfo(self.dsn, dbname=name)
        schema.upgrade(dsn)
        world = World(volumes=2, encrypted=False)
        world.done(world.attach(world.volumes[nth]))
        with Ledger(dsn) as ledger:
            for event, context in stored_events(world):
                assert isinstance(ledger.log_recorder, LedgerRecorder)
                ledger.log_recorder.insert_events([event], context=context)
        catch_up(dsn, ALL)
        grant(dsn, "auditor", RoleKind.AUDITOR)
        return world.volumes[nth]


class Region:
    """Cells north and south, each with its PostgreSQL; that of north's has the auditors', too."""

    def __init__(self, exits: ExitStack) -> None:
        self.north, self.south = Server(exits), Server(exits)
        self.volumes = {
            "north": self.north.ledger("cell", 0),
            "south": self.south.ledger("cell", 1),
        }
        known = "SELECT 1 FROM pg_available_extensions WHERE name = 'postgres_fdw'"
        if not self.north.execute(known):
            pytest.skip("PostgreSQL's postgres_fdw is not installed (Debian: postgresql)")

    def section(self, name: str, **changes: str) -> str:
        server: Server = getattr(self, name)
        given = {"host": server.socket, "dbname": "cell", "user": "auditor", "password": PASSWORD}
        lines = (f"{key}={text}" for key, text in {**given, **changes}.items())
        return "\n".join([f"[{name}]", *lines, ""])


@pytest.fixture(scope="module")
def region() -> Iterator[Region]:
    systems = [each for each in installations() if each.root is None]
    if not systems:
        pytest.skip("the system has no PostgreSQL (Debian: postgresql)")
    with pytest.MonkeyPatch.context() as patch, ExitStack() as exits:
        patch.setattr("ledger.trial.embedded.installations", lambda: systems)
        yield Region(exits)


class Auditors:
    """A database of theirs, and the command that fills it, run by its owner: no superuser."""

    def __init__(self, region: Region, file: Path) -> None:
        self._server, self.file = region.north, file
        execute = region.north.execute
        execute("DROP DATABASE IF EXISTS auditors WITH (FORCE)")
        execute("CREATE DATABASE auditors OWNER chief")
        execute("CREATE EXTENSION postgres_fdw", "auditors")
        execute("GRANT USAGE ON FOREIGN DATA WRAPPER postgres_fdw TO chief", "auditors")
        self.dsn = psycopg.conninfo.make_conninfo(
            region.north.dsn, dbname="auditors", user="chief", password=PASSWORD
        )

    def federate(self, *sections: str, more: tuple[str, ...] = ()) -> int:
        self.file.write_text("# cells\n" + "".join(sections))
        self.file.chmod(0o600)
        return main(["db", "federate", str(self.file), "--database-url", self.dsn, *more])

    def ask(self, question: str, **given: Any) -> list[Any]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            return connection.execute(question.encode(), given).fetchall()

    def made(self) -> list[Any]:
        return self.ask("SELECT srvname, srvoptions FROM pg_foreign_server ORDER BY 1")


@pytest.fixture
def auditors(region: Region, tmp_path: Path) -> Auditors:
    return Auditors(region, tmp_path / "cells.conf")


def test_auditors_ask_the_same_questions_of_all_cells(
    region: Region, auditors: Auditors, capsys: pytest.CaptureFixture[str]
) -> None:
    assert auditors.federate(region.section("north"), region.section("south")) == 0
    said = capsys.readouterr()
    assert "staple" not in said.out + said.err
    assert "2 cells can be read: north, south" in said.err
    for name, volume in region.volumes.items():
        held = "SELECT cell, host FROM audit.spans WHERE volume_id = %(volume)s"
        assert auditors.ask(held, volume=volume) == [(name, HOST)]
    assert auditors.ask("SELECT cell, count(*) > 5 FROM event_log GROUP BY 1 ORDER BY 1") == [
        ("north", True),
        ("south", True),
    ]
    names = re.compile(r":'(\w+)'")
    for question in QUESTIONS.values():
        given = dict.fromkeys(names.findall(question), None)
        auditors.ask(names.sub(r"%(\1)s", question.replace("%'", "%%'")), **given)


def test_run_again_it_does_what_has_changed_and_grants_stay(
    region: Region, auditors: Auditors
) -> None:
    assert auditors.federate(region.section("north"), region.section("south")) == 0
    first = auditors.made()
    grants = "GRANT USAGE ON SCHEMA audit TO ada; GRANT SELECT ON audit.spans TO ada"
    with psycopg.connect(auditors.dsn, autocommit=True) as connection:
        connection.execute(grants.encode())
    assert auditors.federate(region.section("north"), region.section("south")) == 0
    assert auditors.made() == first
    assert auditors.federate(region.section("south", application_name="audit")) == 0
    [(name, options)] = auditors.made()
    assert name == "south"
    assert "application_name=audit" in options
    assert auditors.ask("SELECT DISTINCT cell FROM audit.spans") == [("south",)]
    assert auditors.ask("SELECT has_table_privilege('ada', 'audit.spans', 'SELECT')") == [(True,)]
    assert auditors.ask("SELECT nspname FROM pg_namespace WHERE nspname ~ 'cell'") == [
        ("cell_south",)
    ]


def test_a_dry_run_prints_the_sql_without_passwords_and_changes_nothing(
    region: Region, auditors: Auditors, capsys: pytest.CaptureFixture[str]
) -> None:
    assert auditors.federate(region.section("north"), more=("--dry-run",)) == 0
    said = capsys.readouterr()
    assert "password '********'" in said.out
    assert "CREATE OR REPLACE VIEW audit.spans" in said.out
    assert "staple" not in said.out + said.err
    assert auditors.made() == []


def test_a_cell_that_is_down_is_named_and_nothing_changes(
    region: Region, auditors: Auditors, capsys: pytest.CaptureFixture[str]
) -> None:
    both = region.section("north"), region.section("south")
    assert auditors.federate(*both) == 0
    before = auditors.made()
    region.south.stop()
    try:
        capsys.readouterr()
        assert auditors.federate(region.section("north", port="5432"), both[1]) == 4
        assert "cell south: could not connect" in capsys.readouterr().err
        assert auditors.made() == before
        with pytest.raises(psycopg.OperationalError, match='server "south"'):
            auditors.ask("SELECT FROM audit.spans")
        assert auditors.ask("SELECT DISTINCT cell FROM audit.spans WHERE cell = 'north'") == [
            ("north",)
        ]
    finally:
        region.south.start()


def test_a_cell_whose_views_the_role_may_not_read_is_named(
    region: Region, auditors: Auditors, capsys: pytest.CaptureFixture[str]
) -> None:
    region.south.execute("REVOKE SELECT ON audit.findings FROM auditor", "cell")
    try:
        assert auditors.federate(region.section("north"), region.section("south")) == 4
        assert "cell south: permission denied for view findings" in capsys.readouterr().err
    finally:
        region.south.execute("GRANT SELECT ON audit.findings TO auditor", "cell")
    assert auditors.federate(region.section("south", dbname="postgres")) == 4
    assert "cell south: " in capsys.readouterr().err
    assert auditors.federate(region.section("south", password="wrong")) == 4
    said = capsys.readouterr().err
    assert "cell south: " in said
    assert "authentication failed" in said
    assert auditors.made() == []


def test_columns_that_one_cell_has_not_yet_are_left_out(region: Region, auditors: Auditors) -> None:
    region.south.execute(
        "CREATE OR REPLACE VIEW audit.archived_months AS SELECT month, first_position, "
        "last_position, file, sha256, detached_at, 1 AS later FROM public.detached_months",
        "cell",
    )
    named = (
        "SELECT attname FROM pg_attribute WHERE attrelid = 'audit.archived_months'::regclass"
        " AND attname IN ('cell', 'later')"
    )
    assert auditors.federate(region.section("south"), region.section("north")) == 0
    assert auditors.ask(named) == [("cell",)]
    assert auditors.federate(region.section("south")) == 0
    assert auditors.ask(named) == [("cell",), ("later",)]


def test_what_somebody_has_built_on_a_cells_tables_is_not_dropped(
    region: Region, auditors: Auditors, capsys: pytest.CaptureFixture[str]
) -> None:
    assert auditors.federate(region.section("south")) == 0
    with psycopg.connect(auditors.dsn, autocommit=True) as connection:
        connection.execute("CREATE VIEW mine AS SELECT host FROM cell_south.spans")
    assert auditors.federate(region.section("south")) == 4
    assert "other objects depend on" in capsys.readouterr().err
    assert auditors.ask("SELECT DISTINCT host FROM mine") == [(HOST,)]


def test_a_ledgers_own_database_is_refused(
    region: Region, auditors: Auditors, capsys: pytest.CaptureFixture[str]
) -> None:
    auditors.dsn = psycopg.conninfo.make_conninfo(region.north.dsn, dbname="cell")
    assert auditors.federate(region.section("north")) == 4
    assert "a ledger's own" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "code", "why"),
    [
        ("", 4, "names no cell"),
        ("host=there\n", 4, "is no pg_service.conf"),
        ("[north]\nhost=a\nhost=b\n", 4, "is no pg_service.conf"),
        ("[no rth]\nhost=a\n", 4, "cannot be a cell's name"),
        ("[north]\nhost=a\nuser=b\n", 4, "cell north: dbname is not given"),
    ],
)
def test_a_file_that_does_not_say_enough_is_refused(
    text: str, code: int, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "cells.conf"
    file.write_text(text)
    file.chmod(0o600)
    assert main(["db", "federate", str(file), "--database-url", "postgresql:///none"]) == code
    assert why in capsys.readouterr().err


def test_a_file_that_everybody_may_read_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "cells.conf"
    file.write_text("[north]\nhost=a\nuser=b\ndbname=c\n")
    file.chmod(0o644)
    assert main(["db", "federate", str(file), "--database-url", "postgresql:///none"]) == 2
    assert "chmod o-rwx" in capsys.readouterr().err
    assert main(["db", "federate", str(tmp_path / "none"), "--database-url", "x"]) == 2
