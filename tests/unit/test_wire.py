"""Messages are read by their types, and what is wrong with one is named."""

from __future__ import annotations

from argparse import ArgumentTypeError
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Annotated, Any, cast

import pytest
from msgspec import Meta
from pydantic import TypeAdapter

from host_agent.config import AgentSection
from host_agent.shared.contract.lane import Lane
from host_agent.shared.contract.messages import (
    Command,
    CommandStep,
    Guest,
    PowerState,
    Registration,
    Verb,
)
from host_agent.shared.contract.outputs import Outputs
from host_agent.shared.contract.survey import PARTS, HostsWord
from host_agent.shared.contract.wire import Id, WireError, form, plain, read, read_in_turns
from ledger.auth.certificates import _host
from ledger.auth.tokens import AuthError
from ledger.cli import naming
from ledger.http.call import Call
from ledger.http.problem import ApiError
from ledger.http.schemas import HostName

ID = "0f9d3f0e-1111-2222-3333-444455556666"
GUEST = {"server_id": ID, "name": "vm", "power_state": "running"}
REGISTRATION: dict[str, Any] = {"service_version": 5, "capabilities": {}, "guests": [GUEST]}
SURVEY = {"boot_id": "b", "epoch": 0, **dict.fromkeys([*PARTS, "blind", "why_blind"], ())}
LANE = Lane(server_id="s", volume_id="v", bdm_id="b", attachment_id=None, device_name=None)
COMMAND = Command(
    operation_id=ID,
    run=1,
    position=1,
    epoch=0,
    request_id="r",
    flow="attach",
    steps=(CommandStep(name="plug", verb=Verb.DISK_PLUG),),
    lane=LANE,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Named:
    name: Annotated[str, form("a|ab")]


@pytest.mark.parametrize("name", ["xa", "abb", "a\n", "", "\na"])
def test_a_text_is_all_of_its_form(name: str) -> None:
    assert read({"name": "ab"}, Named).name == "ab"
    with pytest.raises(WireError, match=r"- at `\$\.name`"):
        read({"name": name}, Named)


def test_what_is_plain_is_what_json_holds_whoever_made_the_message() -> None:
    guest = Guest(server_id=ID, name="vm", power_state=PowerState.RUNNING)
    wire = plain(guest)
    assert wire == plain(read(GUEST, Guest)), "what was not said is there, too"
    assert (type(wire["power_state"]), wire["devices"], wire["user_id"]) == (str, [], None)


@pytest.mark.parametrize("reading", [read, read_in_turns])
@pytest.mark.parametrize(
    ("bent", "named"),
    [
        ({"guests": [GUEST, {**GUEST, "server_id": ID.upper()}]}, "server_id`.*guests|guests.*id`"),
        ({"guests": [GUEST, 7]}, "Expected `object`, got `int`.*guests"),
        ({"guests": None}, "guests"),
        ({"service_version": True}, "service_version"),
        ({"service_version": -1}, "service_version"),
        ({"capabilities": {"tag": 1}}, "capabilities"),
        ({"capabilities": {"": True}}, "capabilities"),
        ({"capabilities": {"tag": {"uri": "qemu+tls://h/system", "address": ""}}}, "'tag'"),
        ({"capabilities": {"migration": True}}, "'migration'"),
        ({"connections": ["x"]}, "connections"),
    ],
    ids=str,
)
def test_what_is_wrong_is_named(reading: Any, bent: dict[str, Any], named: str) -> None:
    assert reading({**REGISTRATION, "newer": 1}, Registration) == read(REGISTRATION, Registration)
    with pytest.raises(WireError, match=named):
        reading({**REGISTRATION, **bent}, Registration)


def test_a_command_is_for_a_lane_or_for_a_guest_and_has_steps() -> None:
    assert read(plain(COMMAND), Command) == COMMAND
    with pytest.raises(ValueError, match="either a 'lane' or a 'guest'"):
        replace(COMMAND, lane=None)
    for wrong, named in ({"lane": None}, "'lane'"), ({"steps": []}, "steps"):
        with pytest.raises(WireError, match=named):
            read({**plain(COMMAND), **wrong}, Command)


@dataclass(frozen=True, kw_only=True, slots=True)
class Many:
    items: Annotated[tuple[Named, ...], Meta(max_length=1)]
    ids: tuple[Id, ...] = ()


def test_limits_of_a_list_hold_however_it_is_read() -> None:
    for reading in (read, read_in_turns):
        with pytest.raises(WireError, match="length <= 1"):
            reading({"items": [{"name": "a"}] * 2}, Many)


def test_outputs_that_nobody_knows_are_dropped_at_each_depth() -> None:
    told = {"driver": "rbd", "password": "x", "disk": {"source": {"name": "v", "key": "x"}}}
    assert read(told, Outputs) == {"driver": "rbd", "disk": {"source": {"name": "v"}}}


def _path(name: str) -> str:
    request: Any = SimpleNamespace(match_info={"host": name})
    return Call.host(cast("Call", SimpleNamespace(request=request)))


@pytest.mark.parametrize(
    ("name", "good"),
    [
        ("hv-1.example", True),
        ("H", True),
        ("hv_", True),
        ("h" * 255, True),
        *((name, False) for name in ("", ".", "..", "-hv", "h/v", "h v", "hv\n", "h" * 256)),
    ],
)
def test_a_hosts_name_has_one_form_for_agent_path_body_command_and_certificate(
    name: str, good: bool
) -> None:
    for read_name in (
        lambda text: AgentSection(host=text).host,
        _path,
        TypeAdapter(HostName).validate_python,
        naming.named("host"),
        lambda text: _host({"subjectAltName": (("DNS", text),)}),
        lambda text: read({"host": text, "survey": SURVEY}, HostsWord).host,
    ):
        try:
            assert (read_name(name), good) == (name, True)
        except (ApiError, ArgumentTypeError, AuthError, ValueError):
            assert not good, read_name
