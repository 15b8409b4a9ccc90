"""Who sees what of a server with a volume: the members of its project, and nobody of another."""

from __future__ import annotations

import re
from collections.abc import Iterator
from uuid import uuid4

import pytest
import requests

from ledger.http.routes import ROUTES
from ledger.web import console
from tests.lab.control import Lab
from tests.lab.guest import LabGuest
from tests.lab.people import person
from tests.lab.settings import ENV
from tests.lab.world import CLI_S, CliError

pytestmark = pytest.mark.lab

Ids = dict[str, str]

#: Asked in a query, and what of `{server_id}` ... is in no path.
QUERIES = (
    "/v2.1/servers?all_tenants=1",
    "/v2.1/servers/detail?all_tenants=1",
    "/v2.1/servers/detail?uuid={server_id}",
    "/v1/find?text={server_id}",
    "/v1/find?text={volume_id}",
    "/v1/find?text={operation_id}",
    "/v1/operations?server={server_id}",
    "/v1/operations?volume={volume_id}",
    "/v1/attachments?server={server_id}",
    "/v1/attachments?volume={volume_id}",
    "/v1/attachments?volume={volume_id}&open=false",
    "/v1/drift?server={server_id}",
    "/ui/search?q={server_id}",
    "/ui/search?q={volume_id}",
)
#: What differs from one answer to the next.
PASSING = re.compile(r"req-[0-9a-f-]{36}|\d{4}-\d\d-\d\d[T ][\d:.]+(Z|[+-][\d:]+)?")
#: Where a member sees more of what is there than of what is nowhere: else nothing is shown here.
SHOWN = {
    "/v2.1/servers/{server_id}",
    "/v2.1/servers/{server_id}/os-volume_attachments",
    "/v2.1/servers/{server_id}/os-volume_attachments/{volume_id}",
    "/v2.1/servers/{server_id}/os-instance-actions/{request_id}",
    "/v1/operations/{operation_id}",
    "/v1/operations/{operation_id}/history",
    "/v1/attachments/{attachment_id}",
    "/v1/attachments/{attachment_id}/history",
    "/v1/servers/{server_id}/history",
    "/v1/find?text={server_id}",
    "/v1/attachments?server={server_id}",
    "/v1/operations?server={server_id}",
    "/ui/servers/{server_id}",
    "/ui/operations/{operation_id}",
    "/ui/attachments/{attachment_id}",
}


def addresses() -> Iterator[str]:
    """Everything that can be read, streams and pages too."""
    for route in (*ROUTES, *console.ROUTES):
        if route.method == "GET" and route.rules:
            yield route.path
    yield from QUERIES


def told(who: str, address: str, ids: Ids) -> tuple[int, str]:
    """What this user is answered there, without what passes; ids by their names."""
    names = {name: ids.get(name, "1") for name in re.findall(r"{(\w+)}", address)}
    headers = {"X-Auth-Token": person(who).token, "OpenStack-API-Version": "compute 2.95"}
    url = ENV["LAB_LEDGER_URL"] + address.format(**names)
    answer = requests.get(url, headers=headers, timeout=CLI_S, allow_redirects=False)
    text = PASSING.sub("", answer.headers.get("Location", "") + answer.text)
    for name, value in ids.items():
        text = text.replace(value, f"<{name}>")
    return answer.status_code, text


def test_a_member_of_another_project_cannot_tell_a_server_from_none(
    lab: Lab, guest: LabGuest, volume: str
) -> None:
    """Wherever it looks, it is told the same of what is there as of what is nowhere."""
    lab.cloud.attach(guest.id, volume)
    operation = lab.ledger.wait_outcome("attach", volume)
    [attachment] = lab.cloud.attachments(volume)
    there = {
        "server_id": guest.id,
        "volume_id": volume,
        "operation_id": operation["operation_id"],
        "attachment_id": str(attachment.id),
        "request_id": request_of(guest.id),
    }
    nowhere = {name: str(uuid4()) for name in there}
    nowhere["request_id"] = f"req-{nowhere['request_id']}"
    differs: dict[str, set[str]] = {"member": set(), "reader": set(), "stranger": set()}
    for address in addresses():
        for who, found in differs.items():
            if told(who, address, there) != told(who, address, nowhere):
                found.add(address)
        status, text = told("stranger", address, there)
        asked_for = {f"<{name}>" for name in re.findall(r"{(\w+)}", address)}
        secrets = {f"<{name}>" for name in there} | {guest.name, ENV["LAB_HOST"]}
        assert not [each for each in secrets - asked_for if each in text], (address, status)
    assert differs["stranger"] == set()
    assert differs["member"] >= SHOWN
    assert differs["reader"] == differs["member"]
    lab.cloud.detach(guest.id, volume)


def request_of(server_id: str) -> str:
    """Of the newest of the server's actions."""
    url = f"{ENV['LAB_LEDGER_URL']}/v2.1/servers/{server_id}/os-instance-actions"
    headers = {"X-Auth-Token": person("member").token, "OpenStack-API-Version": "compute 2.95"}
    answer = requests.get(url, headers=headers, timeout=CLI_S)
    answer.raise_for_status()
    return str(answer.json()["instanceActions"][0]["request_id"])


def test_what_is_not_a_users_to_change_stays(lab: Lab, guest: LabGuest, volume: str) -> None:
    """Of a reader of the project, and of a member of another, by the client."""
    lab.cloud.attach(guest.id, volume)
    remove = ("server", "remove", "volume", guest.id, volume)
    with pytest.raises(CliError, match="403: "):
        lab.cloud.openstack(*remove, OS_CLOUD="reader")
    listed = lab.cloud.openstack("server", "list", "-f", "json", OS_CLOUD="reader")
    assert guest.id in {item["ID"] for item in listed}
    with pytest.raises(CliError, match=r"No [Ss]erver found"):
        lab.cloud.openstack(*remove, OS_CLOUD="stranger")
    for what in (("server", "list"), ("volume", "list"), ("volume", "attachment", "list")):
        words = ("--os-volume-api-version", "3.27", *what, "-f", "json")
        assert lab.cloud.openstack(*words, OS_CLOUD="stranger") == []
    assert lab.ledger.operation("detach", volume) is None
    lab.cloud.detach(guest.id, volume)
