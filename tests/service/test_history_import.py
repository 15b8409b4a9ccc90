"""What Nova's database has of the time before the ledger: a real one's, read by the printed SQL and
imported by the command.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pytest

from aggregates.instance import Instance
from handlers.results.observed import record_deleted
from ledger.cli import shell
from ledger.cli.log.history_import import END, PAGE_ROWS
from ledger.log.application import Ledger
from ledger.log.unit import Unit
from ledger.nova_beside.observer import seen_between
from tests.service.api_world import Api
from tests.service.test_console import shown
from tests.tokens import token_of
from tests.world import CONTEXT

NOVA_34 = Path(__file__).parents[1] / "doubles/nova_34"
SAYS = json.loads((NOVA_34 / "says.json").read_text())
ROW: dict[str, Any] = {
    "mapping_id": "585aab5c-d84f-424a-82fc-276b4ac389a1",
    "server_id": "4ae13a01-768f-4ad7-b1e6-4c50a6b2c992",
    "volume_id": "5a8b5738-0d9b-4900-a6d0-0ef37fc44c77",
    "attachment_id": "060582e6-38ef-4c4b-b9c2-d3a2827d2035",
    "device_name": "/dev/sdb",
    "tag": None,
    "boot_index": None,
    "bus": None,
    "delete_on_termination": 0,
    "created_at": "2026-11-21 23:53:42.309287",
    "deleted_at": "2026-11-21 23:53:44.336849",
}
HEAD = {"revision": "ab450ba04102", "read_at": "2026-11-22 00:00:00"}


def printed_sql(capsys: pytest.CaptureFixture[str]) -> str:
    assert shell.main(["history", "sql"]) == 0
    return capsys.readouterr().out


def executed(script: str, *changes: str) -> list[str]:
    """The lines that a client prints, of the database after these changes."""
    database = sqlite3.connect(":memory:")
    database.executescript((NOVA_34 / "cell.sql").read_text() + ";".join(changes))
    now = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}"
    database.create_function("UTC_TIMESTAMP", 0, lambda: now)
    selects = [each for each in script.split(";\n") if each.startswith("SELECT")]
    return [row[0] for select in selects for row in database.execute(select)]


async def imported(api: Api, path: Path, capsys: pytest.CaptureFixture[str], code: int = 0) -> Any:
    url = str(api.http.make_url("/")).rstrip("/")
    words = ["--url", url, "--token", token_of("operator"), "history", "import", str(path)]
    capsys.readouterr()
    assert await asyncio.to_thread(shell.main, [*words, "-f", "json"]) == code, capsys.readouterr()
    return json.loads(capsys.readouterr().out)


def written(path: Path, *lines: Any) -> Path:
    texts = [each if isinstance(each, (str, bytes)) else json.dumps(each) for each in lines]
    path.write_bytes(b"".join((t.encode() if isinstance(t, str) else t) + b"\n" for t in texts))
    return path


async def past(api: Api, path: str) -> list[dict[str, Any]]:
    events = (await api.get(f"{path}/history"))["events"]
    return [each for each in events if each["topic"] == "BlockDeviceMapping.DeletedRowSeen"]


def test_live_rows_by_the_same_sql_are_what_nova_api_says(
    capsys: pytest.CaptureFixture[str],
) -> None:
    script = printed_sql(capsys)
    live = executed(script.replace("deleted <> 0", "deleted = 0"))
    ids = ("mapping_id", "volume_id", "attachment_id", "device_name", "tag")
    rows = [json.loads(line) for line in live[1:-1]]
    read = {
        (row["server_id"], bool(row["delete_on_termination"]), *(row[name] for name in ids))
        for row in rows
    }
    names = ("bdm_uuid", "volumeId", "attachment_id", "device", "tag")
    assert read == {
        (server, each["delete_on_termination"], *(each[name] for name in names))
        for server, mapped in SAYS["mapped"].items()
        for each in mapped
    }
    assert len(read) == len(rows)


def test_it_reads_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    script = printed_sql(capsys)
    begins = [each.split()[0] for each in script.split(";\n") if each.strip()]
    assert begins == ["SET", "START", "SELECT", "SELECT", "SELECT", "SELECT", "COMMIT"]
    assert "connection_info" not in script
    with pytest.raises(sqlite3.OperationalError, match="no such column: disk_bus"):
        executed(script, "ALTER TABLE block_device_mapping DROP COLUMN disk_bus")


async def test_what_nova_has_detached_and_deleted_is_in_both_histories(
    api: Api, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = executed(printed_sql(capsys))
    path = written(tmp_path / "past.jsonl", *lines)
    told = await imported(api, path, capsys)
    assert (told["recorded"], told["known"], told["refused"]) == (2, 0, [])
    assert told["oldest"] == "2026-11-21T23:53:42.309287Z"
    for was in SAYS["was"].values():
        [volume] = was["was"]
        [event] = await past(api, f"/v1/volumes/{volume}")
        assert [event] == await past(api, f"/v1/servers/{was['server']}")
        assert (event["server_id"], event["volume_id"]) == (was["server"], volume)
        assert (event["actor"], event["body"]["revision"]) == ("operator", "ab450ba04102")
        assert event["body"]["seen"]["after"] is None
        assert await api.get(f"/v1/attachments?volume={volume}&open=false") == {
            "attachments": [],
            "next": None,
        }
        assert (await api.ask("GET", f"/v1/servers/{was['server']}")).status == 404
        for page in (f"/ui/servers/{was['server']}", f"/ui/volumes/{volume}"):
            assert "has a mapping of volume" in (await shown(api, page)).text, page
        member = await api.ask("GET", f"/v1/servers/{was['server']}/history", "member")
        assert member.status == 404
        then, since = quote("2026-11-25T00:00:00Z"), quote(event["recorded_at"])
        for moment in (f"at={since}", f"at={then}&known_at={since}"):
            spans = await api.get(f"/v1/attachments?volume={volume}&{moment}")
            assert spans["attachments"] == []
        perhaps = await api.get(f"/v1/volumes/{volume}/history?at={then}&known_at={since}")
        assert perhaps["events"] == [event]
        unknown = await api.ask("GET", f"/v1/volumes/{volume}/history?at={then}")
        assert unknown.status == 404
    async with api.connection() as connection:
        for table in ("instances", "mappings", "attachments", "spans"):
            cursor = await connection.execute(f"SELECT count(*) FROM {table}")
            assert await cursor.fetchone() == (0,), table
    head = await api.head()
    told = await imported(api, path, capsys)
    assert (told["recorded"], told["known"], await api.head()) == (0, 2, head)
    url = str(api.http.make_url("/")).rstrip("/")
    words = ["--url", url, "--token", token_of("operator"), "history", "volume", volume]
    assert await asyncio.to_thread(shell.main, words) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "Seen at Nova (by " in told
    assert "deleted at 2026-11-21 23:54:33, by Nova's clock, device_name /dev/sdb" in told


async def test_archived_rows_are_read_too(
    api: Api, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    null = "UPDATE block_device_mapping SET delete_on_termination = NULL, tag = 'a' || char(10)"
    moved = "block_device_mapping WHERE deleted <> 0"
    archive = (
        f"INSERT INTO shadow_block_device_mapping SELECT * FROM {moved}",
        f"DELETE FROM {moved}",
    )
    path = written(tmp_path / "past.jsonl", *executed(printed_sql(capsys), null, *archive))
    assert (await imported(api, path, capsys))["recorded"] == 2


GARBAGE: list[tuple[Any, str]] = [
    ("{", "no line of JSON"),
    (b'{"tag": "\xff"}', "no line of JSON"),
    ("[" * 10_000, "no line of JSON"),
    ('{"tag": "' + "x" * 20_000 + '"}', "16384 bytes or more"),
    ("17", "no flat object"),
    ("[" * 980 + "]" * 980, "no flat object"),  # it can be read, and not written
    ('{"tag": ' + "[" * 900 + "]" * 900 + "}", "no flat object"),
    ({**ROW, "boot_index": float("nan")}, "Malformed"),
    ({**ROW, "tag": "x" * 256}, "at most 255"),
    ({**ROW, "tag": "a\0b"}, "NUL"),
    ({**ROW, "tag": "a\x1b[2Jb"}, "control character"),
    ('{"tag": "\\ud800"}', "Malformed"),
    ({**ROW, "server_id": "no-uuid"}, "not a UUID"),
    ({**ROW, "mapping_id": None}, "mapping_id"),
    ({**ROW, "boot_index": 2**40}, "boot_index"),
    ({**ROW, "delete_on_termination": 7}, "delete_on_termination"),
    ({**ROW, "created_at": None}, "created_at"),
    ({**ROW, "deleted_at": "2036-01-01 00:00:00"}, "after the reading"),
    ({**ROW, "deleted_at": "2026-11-21 23:53:37"}, "is before created_at"),
    ({**ROW, "deleted_at": "0000-00-00 00:00:00"}, "deleted_at"),
    ({**ROW, "deleted_at": "2026-11-21 23:53:44+01:00"}, "offset"),
    ({**ROW, "connection_info": "{}"}, "connection_info"),
    ({name: value for name, value in ROW.items() if name != "volume_id"}, "volume_id"),
]


async def test_what_is_refused_is_told_by_line_and_the_rest_goes_on(
    api: Api, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    others = [{**ROW, "mapping_id": str(uuid4())} for _ in GARBAGE]
    mixed = [
        line for pair in zip((row for row, _ in GARBAGE), others, strict=True) for line in pair
    ]
    path = written(tmp_path / "past.jsonl", HEAD, *mixed, others[0], END)
    told = await imported(api, path, capsys, code=4)
    assert (told["recorded"], told["known"]) == (len(GARBAGE), 1)
    assert [each["line"] for each in told["refused"]] == [2 + 2 * n for n in range(len(GARBAGE))]
    for each, (_, why) in zip(told["refused"], GARBAGE, strict=True):
        assert why in each["why"], each
    assert len(await past(api, f"/v1/volumes/{ROW['volume_id']}")) == len(GARBAGE)


async def test_a_file_that_is_cut_is_imported_and_told(
    api: Api, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = [{**ROW, "mapping_id": str(uuid4())} for _ in range(PAGE_ROWS)]
    early = {**ROW, "created_at": "2026-11-21 23:53:42"}  # as text it is after the others
    told = await imported(api, written(tmp_path / "cut", HEAD, *whole, early), capsys, code=4)
    assert (told["recorded"], told["oldest"]) == (PAGE_ROWS + 1, "2026-11-21T23:53:42Z")
    [refused] = told["refused"]
    assert (refused["line"], "the file ends" in refused["why"]) == (PAGE_ROWS + 3, True)


@pytest.mark.parametrize(
    "head",
    [ROW, {**HEAD, "revision": "33"}, {**HEAD, "read_at": "2036-01-01 00:00:00"}, {}, "garbage"],
    ids=["no head", "no revision", "in the future", "empty", "no JSON"],
)
async def test_a_file_that_is_not_what_the_sql_prints_is_refused(
    head: Any, api: Api, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path / "past.jsonl", head, ROW)
    url = str(api.http.make_url("/")).rstrip("/")
    words = ["--url", url, "--token", token_of("operator"), "history", "import", str(path)]
    assert await asyncio.to_thread(shell.main, words) == 2
    assert await api.head() == 0


async def test_two_imports_at_once_record_each_row_once(api: Api) -> None:
    rows = [{**ROW, "mapping_id": str(uuid4())} for _ in range(40)]
    body = {**HEAD, "rows": rows}
    answers = await asyncio.gather(
        *(api.ask("POST", "/v1/history/import", json=body) for _ in range(4))
    )
    told = [await each.json() for each in answers]
    assert sum(each["recorded"] for each in told) == len(rows), told
    assert sum(each["known"] for each in told) == 3 * len(rows)
    assert len(await past(api, f"/v1/servers/{ROW['server_id']}")) == len(rows)


async def test_a_past_is_nobodys_present(api: Api, database_url: str) -> None:
    """A server of the ledger's own gets none; a volume of its own does, and stays as it is."""
    server, volume = await api.attached()
    before = await api.get(f"/v1/attachments?volume={volume}")
    path = f"/v2.1/servers/{server}/os-volume_attachments"
    [mapping] = (await api.get(path, version="2.89"))["volumeAttachments"]
    rows = [{**ROW, "server_id": server}, {**ROW, "volume_id": volume}]
    rows += [{**ROW, "mapping_id": mapping["bdm_uuid"]}]  # seen while it lived
    rows += [{**ROW, "mapping_id": server}]  # no mapping has that id
    rows += [{**ROW, "mapping_id": str(uuid4()), "attachment_id": mapping["attachment_id"]}]
    answer = await api.ask("POST", "/v1/history/import", json={**HEAD, "rows": rows})
    told = await answer.json()
    assert (told["recorded"], told["known"]) == (2, 1)
    own, others = told["refused"]
    assert (own["row"], "is the ledger's own" in own["why"]) == (0, True)
    assert (others["row"], "of another server or volume" in others["why"]) == (4, True)
    assert await past(api, f"/v1/attachments/{mapping['attachment_id']}") == []
    assert await api.get(f"/v1/attachments?volume={volume}") == before
    assert len(await past(api, f"/v1/volumes/{volume}")) == 1
    with Ledger(database_url) as ledger:
        instance = ledger.load(Instance, Instance.id_of(ROW["server_id"]))
        assert instance.version == 0, "nobody's: the next look may still find it at Nova"
        unit = Unit(ledger)
        assert not record_deleted(
            {**rows[1], **HEAD}, seen_between(None, "2026-11-22T00:00:00+00:00"), unit
        )
        assert unit.save(CONTEXT) == 0


async def test_members_import_nothing(api: Api) -> None:
    for who in ("member", "reader", "agent-1", "cinder"):
        answer = await api.ask("POST", "/v1/history/import", who, json={**HEAD, "rows": [ROW]})
        assert answer.status == 403, who
