"""Row 15: what an attach waits longer while a look at everything goes on.

The look is the service's own, in its process, over servers of many hosts where all agree: Cinder
lists just what the ledger has, at the pace that a look keeps as shipped, and hosts answer as soon
as they are asked.  One server attaches and detaches a volume all the time, as in row 9: so many
times alone, then until a look has ended, in turns.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import orjson
import psycopg

from ledger.reconcile.asking import LookRequests, own_context
from ledger.trial.cinder import server as simulation
from ledger.trial.cinder.model.model import CinderModel
from ledger.trial.cinder.model.rows import StoredAttachment
from tests.benchmarks import look
from tests.benchmarks.cycle import WARM_UP_CYCLES, World, running
from tests.benchmarks.figures import Figure, Size
from tests.benchmarks.servers import server
from tests.stack import eventually

#: The first host is that of the server that attaches.
FIRST, HOSTS, SERVERS = 2, {Size.QUICK: 40, Size.FULL: 400}, 10
ROUNDS, ALONE_CYCLES = 3, 20
RATIO_MAX = 1.1
_HELD = "SELECT attachment_id::text, volume_id::text, server_id::text, host FROM attachments"
_ALIVE = "UPDATE host_contact SET seen_at = clock_timestamp()"
_ENDED = "SELECT outcome, compared, unknown FROM looks WHERE look_id = %s AND outcome IS NOT NULL"


def figures(size: Size) -> Iterator[Figure]:
    """Row 15."""
    with server() as dsn, tempfile.TemporaryDirectory() as home:
        look._fill(dsn, FIRST, FIRST + HOSTS[size] - 1, SERVERS)
        rows = Path(home) / "attachments.json"
        with psycopg.connect(dsn) as database:
            held = database.execute(_HELD).fetchall()
        rows.write_bytes(orjson.dumps(held))
        of_cinder = ("tests.benchmarks.meanwhile", str(rows))
        with look._hosts(dsn), running(Path(home), dsn, cinder=of_cinder) as world:
            world.cycles(WARM_UP_CYCLES)
            alone, beside, looks_s = list[float](), list[float](), list[float]()
            for _ in range(ROUNDS):
                alone += _attaches(world, ALONE_CYCLES)
                began = time.monotonic()
                beside += _while_looking(dsn, world, len(held))
                looks_s.append(time.monotonic() - began)
    yield Figure(
        row=15,
        name="attach during a look, p50 without Cinder and host",
        value=statistics.median(beside) / statistics.median(alone),
        unit="x alone",
        target=RATIO_MAX,
        compared_with=f"{statistics.median(beside):.1f} ms of {len(beside)}, alone"
        f" {statistics.median(alone):.1f} ms of {len(alone)}; looks at {len(held)} attachments of"
        f" {HOSTS[size]} hosts, {statistics.median(looks_s):.0f} s each",
    )


def _attaches(world: World, count: int) -> list[float]:
    return [cycle.attach.own_ms for cycle in world.cycles(count)]


def _while_looking(dsn: str, world: World, attachments: int) -> list[float]:
    """What was attached from when a look had begun until it ended; all of it has to agree."""
    with psycopg.connect(dsn, autocommit=True) as database:
        database.execute(_ALIVE)
        look_id = LookRequests(dsn).ask({}, "asked", own_context())
        begun = "SELECT FROM looks WHERE look_id = %s"
        eventually(lambda: database.execute(begun, [look_id]).fetchall(), "the look begins")
        found: list[float] = []
        while not (ended := database.execute(_ENDED, [look_id]).fetchall()):
            found += _attaches(world, 1)
        [(outcome, compared, unknown)] = ended
    assert (outcome, unknown) == ("completed", {}), (outcome, unknown)
    assert compared["attachment"] >= attachments
    return found


def _serve(rows: Path) -> None:
    """A simulated Cinder that has these attachments; its address is its first line."""
    model = CinderModel()
    for id_, volume_id, server_id, host in orjson.loads(rows.read_bytes()):
        model.add_volume(volume_id=volume_id, status="in-use", project_id="p")
        ids = {"id": id_, "volume_id": volume_id, "instance": server_id}
        model.put_attachment(StoredAttachment(**ids, status="attached", mode="rw", host=host))
    app = simulation.make_app(model)

    def ready(url: str) -> None:
        sys.stdout.write(f"{url}/v3\n")
        sys.stdout.flush()

    asyncio.run(simulation.serve("127.0.0.1", 0, app=app, ready=ready, stop=asyncio.Event()))


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
