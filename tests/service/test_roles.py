"""Roles of the database: the service can work with its own, auditors read, and that is all."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql

from ledger.cli.shell import main
from ledger.log.roles import RoleError, grant
from ledger.upkeep import long_work
from ledger.upkeep.long_work import Checkmark
from projections.running.rights import RoleKind, rights
from tests.service.api_world import running_api

Db = psycopg.Connection[Any]


@pytest.fixture
def db(database_url: str) -> Iterator[Db]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def role(db: Db) -> Iterator[str]:
    """A name for a role of this database alone."""
    name = f"role_of_{db.info.dbname}"
    yield name
    if db.execute("SELECT FROM pg_roles WHERE rolname = %s", [name]).fetchall():
        db.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(name)))
        db.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


@pytest.fixture
def as_role(database_url: str, role: str) -> str:
    url = urlsplit(database_url)
    return f"{url.scheme}://{role}@{url.netloc.rpartition('@')[2]}{url.path}?{url.query}"


def allowed(db: Db, role: str) -> set[tuple[str, str]]:
    """What the role may do with tables and views, by PostgreSQL's word."""
    rows = db.execute(
        "SELECT c.oid::regclass::text, p FROM pg_class AS c,"
        " unnest('{SELECT,INSERT,UPDATE,DELETE,TRUNCATE,REFERENCES,TRIGGER}'::text[]) AS p"
        " WHERE c.relkind IN ('r', 'v') AND has_table_privilege(%s, c.oid, p)"
        " AND c.relnamespace::regnamespace::text IN ('public', 'audit', 'rebuild')",
        [role],
    )
    return {(name, right) for name, right in rows}


async def test_the_service_attaches_and_detaches_with_the_rights_of_its_role(
    database_url: str, role: str, as_role: str, db: Db
) -> None:
    grant(database_url, role, RoleKind.SERVICE)
    async with running_api(as_role) as api:
        server, volume = await api.attached()
        path = f"/v2.1/servers/{server}/os-volume_attachments/{volume}"
        assert (await api.played(await api.ask("DELETE", path)))["outcome"] == "completed"
        assert (await api.ask("GET", "/readyz", None)).status == 200
    assert db.execute("SELECT FROM spans WHERE to_at IS NOT NULL").fetchall()
    assert allowed(db, role) == set(rights(RoleKind.SERVICE))


def test_long_work_is_one_processs_whatever_its_role(
    database_url: str, role: str, as_role: str
) -> None:
    """Of another role's session PostgreSQL shows that it is there, and not since when."""
    grant(database_url, role, RoleKind.SERVICE)

    def work(_: Checkmark) -> Generator[Checkmark]:
        with pytest.raises(long_work.BusyError):
            long_work.run(as_role, "work", work, print)
        with psycopg.connect(as_role) as connection:
            assert [each.running for each in long_work.under_way(connection)] == [True]
        yield Checkmark()

    long_work.run(database_url, "work", work, print)


def test_a_session_that_has_the_pid_of_a_killed_one_does_not_do_its_work(
    database_url: str, role: str, as_role: str
) -> None:
    grant(database_url, role, RoleKind.SERVICE)
    leave = "INSERT INTO long_work (name, holder_pid, holder_since) VALUES ('work', %s, now())"
    done = []

    def work(_: Checkmark) -> Generator[Checkmark]:
        yield Checkmark()
        done.append(True)

    name = "attachment-ledger reader"
    with psycopg.connect(database_url, autocommit=True, application_name=name) as stranger:
        stranger.execute(leave, [stranger.info.backend_pid])
        with psycopg.connect(as_role) as connection:
            assert [each.running for each in long_work.under_way(connection)] == [False]
        long_work.run(as_role, "work", work, print)
    assert done


REFUSED = (
    ("db upgrade", "", 4, "may not do this: permission denied"),
    ("projection rebuild all", "", 4, "may not do this: permission denied"),
    ("projection rebuild all", "&options=-cdefault_transaction_read_only%3Don", 1, "read-only"),
    ("db check", "&no_option=1", 2, "is no address of a database: invalid"),
)


def test_a_command_that_the_database_refuses_says_so(
    database_url: str, role: str, as_role: str, capsys: pytest.CaptureFixture[str]
) -> None:
    grant(database_url, role, RoleKind.SERVICE)
    for words, more, code, why in REFUSED:
        assert main([*words.split(), "--database-url", as_role + more]) == code
        assert why in capsys.readouterr().err


@pytest.mark.parametrize("name", ["pg_auditor", "public", ""])
def test_a_name_that_no_role_can_have_is_refused(name: str, database_url: str) -> None:
    with pytest.raises(RoleError, match="no role can have this name"):
        grant(database_url, name, RoleKind.AUDITOR)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE events SET actor = 'nobody'",
        "DELETE FROM events",
        "TRUNCATE leases",
        "CREATE TABLE mine (id int)",
        "DELETE FROM schema_migrations",
    ],
)
def test_the_service_cannot_change_what_was_recorded(
    statement: str, database_url: str, role: str, as_role: str
) -> None:
    grant(database_url, role, RoleKind.SERVICE)
    with psycopg.connect(as_role) as service, pytest.raises(psycopg.errors.InsufficientPrivilege):
        service.execute(statement.encode())


def test_an_auditor_reads_what_is_promised_and_nothing_else(
    database_url: str, role: str, as_role: str, db: Db
) -> None:
    grant(database_url, role, RoleKind.AUDITOR)
    views = {name for name, _ in rights(RoleKind.AUDITOR)}
    assert allowed(db, role) == {(view, "SELECT") for view in views}
    promised = db.execute("SELECT 'audit.' || viewname FROM pg_views WHERE schemaname = 'audit'")
    assert {view for (view,) in promised} | {"event_log"} == views
    with psycopg.connect(as_role, autocommit=True) as auditor:
        for view in views:
            auditor.execute(f"SELECT * FROM {view}".encode())
        for forbidden in (
            "SELECT FROM events",
            "SELECT FROM attachments",
            "DELETE FROM audit.archived_months",
            "SELECT append_events('{}', '{}')",
            "CREATE TABLE public.mine (id int)",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                auditor.execute(forbidden.encode())


@pytest.mark.parametrize("kind", RoleKind)
def test_granting_again_does_nothing_and_takes_back_what_is_more(
    kind: RoleKind, database_url: str, role: str, db: Db
) -> None:
    first = grant(database_url, role, kind)
    assert first[0] == f"CREATE ROLE {role} LOGIN"
    assert grant(database_url, role, kind) == ()
    db.execute(f"GRANT UPDATE, DELETE ON events TO {role}".encode())
    assert grant(database_url, role, kind) == (f"REVOKE DELETE, UPDATE ON events FROM {role}",)
    assert allowed(db, role) == set(rights(kind))
    grant(database_url, role, RoleKind.AUDITOR)
    assert allowed(db, role) == set(rights(RoleKind.AUDITOR))


def test_a_role_that_rights_do_not_limit_is_refused_and_nothing_is_changed(
    database_url: str, role: str, db: Db
) -> None:
    with pytest.raises(RoleError, match="superuser or owns the log"):
        grant(database_url, db.info.user, RoleKind.SERVICE)
    db.execute("GRANT DELETE ON leases, hosts TO PUBLIC")
    with pytest.raises(RoleError, match=r"more than it needs by PUBLIC.*DELETE ON hosts"):
        grant(database_url, role, RoleKind.AUDITOR)
    assert not db.execute("SELECT FROM pg_roles WHERE rolname = %s", [role]).fetchall()


def test_who_is_not_the_owner_is_told_so(database_url: str, role: str, as_role: str) -> None:
    grant(database_url, role, RoleKind.SERVICE)
    with pytest.raises(RoleError, match="this needs the owner of the tables"):
        grant(as_role, f"{role}_2", RoleKind.AUDITOR)


def test_the_command_says_what_it_did(
    database_url: str,
    role: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def command() -> int:
        return main(["db", "grant", "auditor", role, "--database-url", database_url])

    assert command() == 0
    said = capsys.readouterr()
    assert f"GRANT SELECT ON audit.spans TO {role};\n" in said.out
    assert f"role {role} has the rights of the auditor" in said.err
    assert command() == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert "and no more" in said.err
