"""Diagrams are what the tables say."""

from __future__ import annotations

import json
from importlib import import_module

import pytest

from handlers.engine.plan import Flow, Place, Side, Stage, Step
from handlers.engine.verbs import VERBS, LedgerVerb
from handlers.flows import FLOWS
from host_agent.shared.contract.messages import Verb
from host_agent.verbs import GUEST_VERBS as DONE_FOR_SERVERS
from host_agent.verbs import VERBS as DONE_FOR_LANES
from ledger.cli import shell
from ledger.cli.operations import diagram

SMALL = Flow(
    name="small",
    pivot="move",
    stages=(
        Stage(
            Place.DESTINATION,
            (Step("take", Verb.ATTACHMENT_CREATE, undo=Verb.ATTACHMENT_DELETE),),
            side=Side.NEW,
        ),
        Stage(Place.SOURCE, (Step("move", Verb.GUEST_MIGRATE, undo=Verb.GUEST_STAY),), once=True),
        Stage(Place.LEDGER, (Step("forget", LedgerVerb.MAPPING_UNBIND),)),
    ),
)

TEXT = """\
user        ledger      Cinder      source      destination libvirt
 |---------->|           |           |           |           |  small request
 |           |           |           |           |           |  each volume:
 |           |---------------------------------->|           |    command: take
 |           |           |<----------------------|           |    take: attachment create with connector (new)
 |           |<----------------------------------|           |    report: the results
 |           |---------------------->|           |           |  command: move
 |           |           |           |---------------------->|  move: migrate live to the destination
 |           |           |           |           |           |  -- pivot: from here on only forward, or park
 |           |<----------------------|           |           |  report: the results
 |           |           |           |           |           |  each volume:
 |           o           |           |           |           |    forget: end the mapping
 |           |           |           |           |           |  -- if a step up to move fails: undo what may have happened, in reverse
 |           |           |           |---------------------->|  undo move: end the migration, if it still runs
 |           |           |           |           |           |  each volume:
 |           |           |<----------------------|           |    undo take: attachment delete (new)
 |           |           |           |           |           |  -- if an undo or a step after the pivot fails: park
"""  # noqa: E501

MERMAID = """\
sequenceDiagram
    participant user as user
    participant ledger as ledger
    participant Cinder as Cinder
    participant source as source
    participant destination as destination
    participant libvirt as libvirt
    user->>ledger: small request
    loop each volume
        ledger->>destination: command: take
        destination->>Cinder: take: attachment create with connector (new)
        destination-->>ledger: report: the results
    end
    ledger->>source: command: move
    source->>libvirt: move: migrate live to the destination
    Note over user,libvirt: pivot: from here on only forward, or park
    source-->>ledger: report: the results
    loop each volume
        ledger->>ledger: forget: end the mapping
    end
    Note over user,libvirt: if a step up to move fails: undo what may have happened, in reverse
    source->>libvirt: undo move: end the migration, if it still runs
    loop each volume
        destination->>Cinder: undo take: attachment delete (new)
    end
    Note over user,libvirt: if an undo or a step after the pivot fails: park
"""


def test_text() -> None:
    assert diagram.text(SMALL) == TEXT


def test_mermaid() -> None:
    assert diagram.mermaid(SMALL) == MERMAID


def test_every_verb_has_another_end() -> None:
    assert {spec.to for spec in VERBS.values()} <= set(diagram.PARTIES)


def test_a_flow_that_has_nothing_to_undo_does_not_say_that_it_parks() -> None:
    step = Stage(Place.HOST, (Step("pause", Verb.GUEST_PAUSE),), once=True)
    drawn = diagram.text(Flow(name="tiny", stages=(step,)))
    assert "if a step fails: nothing to undo" in drawn
    assert "park" not in drawn


@pytest.mark.parametrize("flow", FLOWS.values(), ids=lambda flow: flow.name)
def test_every_step_is_drawn_in_order_and_every_undo_in_reverse(flow: Flow) -> None:
    drawn = diagram.text(flow)
    steps = [step for stage in flow.stages for step in stage.steps]
    undone = [step.name for step in reversed(steps) if step.undo is not None]
    places = [drawn.index(f"  {step.name}: ") for step in steps]
    places += [drawn.index(f"  undo {name}: ") for name in undone]
    assert places == sorted(places)


@pytest.mark.parametrize("flow", FLOWS)
def test_flow_show_names_functions_that_are_there(
    flow: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of hosts have the verbs' names."""
    agents = {each.__name__ for each in (*DONE_FOR_LANES.values(), *DONE_FOR_SERVERS.values())}
    assert shell.main(["flow", "show", flow, "--functions", "-f", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    for (_, step), row in zip(diagram.table(FLOWS[flow]), rows, strict=True):
        assert row["Does"] or step.do == LedgerVerb.CHECKPOINT, row
        for module, name in (
            row[each].split(": ") for each in ("Does", "Undo", "Records") if row[each]
        ):
            assert name in (agents if module == "host_agent.verbs" else dir(import_module(module)))


def test_flow_show_prints_the_table_and_the_diagram(capsys: pytest.CaptureFixture[str]) -> None:
    assert shell.main(["flow", "show", "detach", "-f", "csv", "-c", "Step", "-c", "Pivot"]) == 0
    rows = ["Step,Pivot", "unplug,pivot", "disconnect,", "delete,", "unbind,"]
    assert capsys.readouterr().out.replace('"', "").splitlines() == rows
    assert shell.main(["flow", "show", "detach", "--diagram"]) == 0
    assert capsys.readouterr().out == diagram.text(FLOWS["detach"])
    assert shell.main(["flow", "show", "detach", "--diagram", "mermaid"]) == 0
    assert capsys.readouterr().out == diagram.mermaid(FLOWS["detach"])


def test_an_unknown_flow_is_not_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert shell.main(["flow", "show", "teleport"]) == 3
    assert f"Flows: {', '.join(FLOWS)}" in capsys.readouterr().err
