"""Each act is one row: its handler, its command and its form take what the row says."""

from __future__ import annotations

import inspect
from pkgutil import resolve_name

import pytest

from aggregates.operation import SERVER
from handlers.engine.plan import LANES_MAX
from ledger.auth.rules import RULES
from ledger.cli.shell import COMMANDS
from ledger.native import acts as api
from ledger.web import acts as web
from ledger.words.acts import ACTS, BY_NAME, Act, FieldKind

every = pytest.mark.parametrize("act", ACTS, ids=[act.name for act in ACTS])


@every
def test_the_handler_takes_what_is_said_and_nothing_else(act: Act) -> None:
    [route] = [each for each in api.ROUTES if each.name == act.route]
    said = dict.fromkeys(each.name for each in act.fields)
    name = [act.name] if act.of.wraps else []
    inspect.signature(inspect.unwrap(route.handler)).bind(None, *name, **said)
    assert {rule.partition(":")[2] for rule in route.rules} == {act.filled(act.rule or act.of.rule)}
    assert set(route.rules) <= {rule.name for rule in RULES}


@every
def test_the_command_is_the_acts_and_knows_what_to_print(act: Act) -> None:
    command = resolve_name(COMMANDS[act.command])
    assert command.act is act
    assert inspect.getdoc(command) == act.words
    ends = act.ends or act.of.ends
    given = (None, None, None) if ends else (None,)
    inspect.signature(resolve_name(f"ledger.cli.{ends or act.of.shown}")).bind(*given)


@every
def test_the_body_of_a_form_is_one_that_the_route_takes(act: Act) -> None:
    sent = {each.name: "x" for each in act.fields if each.needed}
    sent |= {each.name: "0 unplug" for each in act.fields if each.kind is FieldKind.STEP}
    body = web.body(act, sent)
    [route] = [each for each in api.ROUTES if each.name == act.route]
    assert isinstance(route.body, type)
    route.body.model_validate(body, strict=True)
    told = body[act.name] if act.of.wraps else body
    assert set(told) <= {each.name for each in act.fields}
    with pytest.raises(ValueError, match="Extra inputs"):
        route.body.model_validate({**body, "unknown": 1}, strict=True)


@pytest.mark.parametrize("lane", [SERVER, 0, 64, LANES_MAX - 1])
def test_a_step_of_any_lane_can_be_skipped(lane: int) -> None:
    """A deletion of a server with many volumes has as many lanes, and parks at any of them."""
    body = api.BODIES[BY_NAME["skip"].body]
    said = {"lane": lane, "step": "disconnect", "reason": "the disk is gone"}
    assert body.model_validate(said, strict=True).model_dump() == said
    for none in (SERVER - 1, LANES_MAX):
        with pytest.raises(ValueError, match="lane"):
            body.model_validate({**said, "lane": none}, strict=True)


def test_each_act_is_another_name_command_and_page() -> None:
    """Of two with one name, of a host and of a look, the first would have no command any more."""
    commands, pages = [act.command for act in ACTS], [web.page(act) for act in ACTS]
    for told in ([act.name for act in ACTS], commands, pages):
        assert len(set(told)) == len(ACTS)
