"""Row 18: what an attach and a detach write: WAL by relation, and what stays in the tables.

The WAL is read from the server's own files by its pg_waldump, and each record is counted for the
relations it names.  Full page images are told apart: how many there are depends on how often the
server makes a checkpoint, so none is made while cycles are counted.  What stays is the growth of
tables and indexes, after VACUUM has freed what was replaced.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psycopg

from ledger.trial.embedded_programs import installations
from tests.benchmarks.cycle import WARM_UP_CYCLES, running
from tests.benchmarks.figures import Figure, Size
from tests.benchmarks.servers import server

CYCLES = {Size.QUICK: 100, Size.FULL: 1_000}
WAL_KB, KEPT_KB = 50.0, 25.0
#: Relations below this are added up.
SHOWN_KB = 0.5
#: `rmgr: Heap len (rec/tot): 59/ 59, ... lsn: 0/1, ... blkref #0: rel 1663/5/16389 ...`
_RECORD = re.compile(r"^rmgr: (\S+)\s+len \(rec/tot\):\s*(\d+)/\s*(\d+)")
_RELATION = re.compile(r"blkref #\d+: rel \d+/\d+/(\d+)")
_OTHERS = "others"
#: Filled by pg_relation_filenode; indexes are named with their table.
_NAMES = """
SELECT pg_relation_filenode(c.oid)::text, coalesce(t.relname || ': ' || c.relname, c.relname)
  FROM pg_class AS c
  LEFT JOIN pg_index AS i ON i.indexrelid = c.oid
  LEFT JOIN pg_class AS t ON t.oid = i.indrelid
 WHERE pg_relation_filenode(c.oid) IS NOT NULL
"""
_SIZES = """
SELECT t.relname, pg_total_relation_size(t.oid)
  FROM pg_class AS t JOIN pg_namespace AS n ON n.oid = t.relnamespace
 WHERE t.relkind = 'r' AND n.nspname = 'public'
"""


class Written(NamedTuple):
    """Bytes and records of WAL by relation, without page images; the images; bytes that stay."""

    wal: Counter[str]
    records: Counter[str]
    images: int
    kept: Counter[str]


def figures(size: Size) -> Iterator[Figure]:
    cycles = CYCLES[size]
    with server() as dsn, tempfile.TemporaryDirectory() as home, running(Path(home), dsn) as world:
        world.cycles(WARM_UP_CYCLES)
        with psycopg.connect(dsn, autocommit=True) as connection:
            sizes = _sizes(connection)
            connection.execute("CHECKPOINT")
            world.cycles(WARM_UP_CYCLES)  # the first change of each page has an image
            begin = _lsn(connection)
            world.cycles(cycles)
            end = _lsn(connection)
            written = read(connection, begin, end)
            kept = _sizes(connection)
            kept.subtract(sizes)
    yield from _shown(written._replace(kept=kept), cycles)


def _shown(written: Written, cycles: int) -> Iterator[Figure]:
    kb = 1 / cycles / 1000
    whole = sum(written.wal.values()) * kb
    images = f"{written.images * kb:.1f} kB of page images in addition"
    yield _figure("WAL of an attach and detach", whole, target=WAL_KB, compared_with=images)
    small = 0.0
    for name, wrote in written.wal.most_common():
        if wrote * kb < SHOWN_KB or name == _OTHERS:
            small += wrote * kb
            continue
        count = f"{written.records[name] / cycles:.1f} records"
        yield _figure(f"of these: {name}", wrote * kb, compared_with=count)
    yield _figure("of these: all others", small)
    stays = sum(written.kept.values()) / (cycles + WARM_UP_CYCLES) / 1000
    yield _figure("growth of tables and indexes by an attach and detach", stays, target=KEPT_KB)
    for name, size in written.kept.most_common():
        if size / (cycles + WARM_UP_CYCLES) / 1000 >= SHOWN_KB:
            each = size / (cycles + WARM_UP_CYCLES) / 1000
            yield _figure(f"of this: {name}", each)


def _figure(
    name: str, kb: float, target: float | None = None, compared_with: str | None = None
) -> Figure:
    return Figure(
        row=18, name=name, value=kb, unit="kB", target=target, compared_with=compared_with
    )


def _lsn(connection: psycopg.Connection) -> str:
    return str(connection.execute("SELECT pg_current_wal_flush_lsn()").fetchall()[0][0])


def _sizes(connection: psycopg.Connection) -> Counter[str]:
    connection.execute("VACUUM")
    return Counter(dict(connection.execute(_SIZES).fetchall()))


def read(connection: psycopg.Connection, begin: str, end: str) -> Written:
    """What is in the WAL between two places of it."""
    names: dict[str, str] = dict(connection.execute(_NAMES).fetchall())
    [(data, version)] = connection.execute(
        "SELECT current_setting('data_directory'), current_setting('server_version_num')::int"
    ).fetchall()
    program = next(
        each.bin / "pg_waldump" for each in installations() if each.major == version // 10_000
    )
    command = [str(program), "-p", f"{data}/pg_wal", "-s", begin, "-e", end]
    told = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
    wal, records, images = Counter[str](), Counter[str](), 0
    for line in told.splitlines():
        if found := _RECORD.match(line):
            record, total = int(found[2]), int(found[3])
            touched = _RELATION.search(line)
            name = names.get(touched[1], _OTHERS) if touched else found[1]
            wal[name] += record
            records[name] += 1
            images += total - record
    return Written(wal, records, images, Counter())
