"""`projection rebuild` and `projection list`, as an operator types them."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import Any

import pytest

from aggregates.host import Host, host_uuid
from ledger.cli import shell
from ledger.log.application import Ledger
from ledger.upkeep.long_work import WorkProgress
from projections import catalog
from projections.base import LoggedEvent, Projection, Row
from projections.catalog import ALL
from projections.hosts import HOSTS
from projections.running import projector as projector_module
from tests.store.test_rebuild import anew, telling


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projector_module, "STEP_POSITIONS", 3)
    monkeypatch.setattr(projector_module, "READ_POSITIONS", 1)


DEADLINE_S = 30.0


def interrupted_at(position: int) -> Projection:
    def fold(row: Row | None, event: LoggedEvent) -> Any:
        if event.position == position:
            signal.raise_signal(signal.SIGINT)
        return HOSTS.fold(row, event)

    return replace(HOSTS, fold=fold)


def test_ctrl_c_stops_the_command_and_the_same_command_goes_on(
    interruptible: None,
    database_url: str,
    hosts: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    where = ["--database-url", database_url]
    monkeypatch.setattr(catalog, "ALL", (interrupted_at(5),))
    assert shell.main(["projection", "rebuild", "hosts", *where]) == 130
    said = capsys.readouterr().err
    assert "rebuild is stopped after 3 of 9 events. The same command goes on there." in said
    assert shell.main(["projection", "list", *where]) == 0
    assert "rebuild: 3 of 9 events (33 %), stopped" in capsys.readouterr().err

    folded: list[int] = []
    monkeypatch.setattr(catalog, "ALL", (telling(folded),))
    assert shell.main(["projection", "rebuild", "hosts", *where]) == 0
    assert folded == list(range(4, hosts + 1))
    assert f"hosts is rebuilt up to position {hosts}." in capsys.readouterr().err


def test_the_command_refuses_while_another_process_rebuilds(
    database_url: str, hosts: int, capsys: pytest.CaptureFixture[str]
) -> None:
    codes: list[int] = []

    def ask(progress: WorkProgress) -> None:
        if progress.done == 6:
            where = ["--database-url", database_url]
            codes.append(shell.main(["projection", "rebuild", "hosts", *where]))

    anew(database_url, HOSTS, watch=ask)

    assert codes == [4]
    assert "another process does this now: rebuild" in capsys.readouterr().err


def test_the_list_says_how_far_behind_in_events_and_seconds(
    ledger: Ledger, database_url: str, hosts: int, capsys: pytest.CaptureFixture[str]
) -> None:
    host = ledger.load(Host, host_uuid("h0"))
    host.fence("dead", "ipmi says off")
    ledger.save(host)
    where = ["--database-url", database_url, "-f", "value"]
    assert shell.main(["projection", "list", *where]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert {row[0] for row in rows} == {each.name for each in ALL}
    assert {(row[1], row[2]) for row in rows} == {(str(hosts), "1")}
    assert all(0 <= float(row[3]) < DEADLINE_S for row in rows)
