"""Diagrams are what the tables say."""

from __future__ import annotations

import pytest

from handlers.flows import FLOWS
from handlers.plan import Flow, LedgerVerb, Place, Stage, Step
from host_agent.contract import Verb
from ledger import diagram
from ledger.cli import shell

SMALL = Flow(
    name="small",
    pivot="take",
    stages=(
        Stage(Place.HOST, (Step("take", Verb.DISK_UNPLUG, undo=Verb.DISK_PLUG),)),
        Stage(Place.LEDGER, (Step("forget", LedgerVerb.MAPPING_UNBIND),)),
    ),
)

TEXT = """\
user       ledger     Cinder     agent      os-brick   libvirt
 |--------->|          |          |          |          |  small request
 |          |-------------------->|          |          |  command: take
 |          |          |          |-------------------->|  take: detach device, live and persistent
 |          |          |          |          |          |  -- pivot: from here on only forward, or park
 |          |<--------------------|          |          |  a report after each step
 |          o          |          |          |          |  forget: end the mapping
 |          |          |          |          |          |  -- if a step up to take fails: undo what may have happened, in reverse
 |          |          |          |-------------------->|  undo take: attach device, live and persistent
 |          |          |          |          |          |  -- if an undo or a step after the pivot fails: park
"""  # noqa: E501

MERMAID = """\
sequenceDiagram
    participant user as user
    participant ledger as ledger
    participant Cinder as Cinder
    participant agent as agent
    participant osbrick as os-brick
    participant libvirt as libvirt
    user->>ledger: small request
    ledger->>agent: command: take
    agent->>libvirt: take: detach device, live and persistent
    Note over user,libvirt: pivot: from here on only forward, or park
    agent-->>ledger: a report after each step
    ledger->>ledger: forget: end the mapping
    Note over user,libvirt: if a step up to take fails: undo what may have happened, in reverse
    agent->>libvirt: undo take: attach device, live and persistent
    Note over user,libvirt: if an undo or a step after the pivot fails: park
"""


def test_text() -> None:
    assert diagram.text(SMALL) == TEXT


def test_mermaid() -> None:
    assert diagram.mermaid(SMALL) == MERMAID


def test_every_verb_has_another_end() -> None:
    assert set(diagram.CALLS) == {*LedgerVerb, *Verb}
    assert {party for party, _ in diagram.CALLS.values()} <= set(diagram.PARTIES)


@pytest.mark.parametrize("flow", FLOWS.values(), ids=lambda flow: flow.name)
def test_every_step_is_drawn_in_order_and_every_undo_in_reverse(flow: Flow) -> None:
    drawn = diagram.text(flow)
    steps = [step for stage in flow.stages for step in stage.steps]
    undone = [step.name for step in reversed(steps) if step.undo is not None]
    places = [drawn.index(f"  {step.name}: ") for step in steps]
    places += [drawn.index(f"  undo {name}: ") for name in undone]
    assert places == sorted(places)


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
    assert "Flows: attach, detach" in capsys.readouterr().err
