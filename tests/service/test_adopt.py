"""A host goes from a Nova that runs to the ledger, and back: the service in its own process,
PostgreSQL, a simulated Nova and its Cinder over HTTP, and an agent on the host afterwards.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from typing import Any

import pytest
from requests import Response

from handlers.results.adopt import ServerFacts
from ledger.cli import shell
from ledger.cli.errors import ExitCode
from ledger.nova_beside.reads import seen_mapping, seen_server
from tests.doubles.nova_database import NovaDatabase
from tests.doubles.simulated_nova import Mapping, Server
from tests.service.watched_world import Watched
from tests.stack import ADMIN, ROOT, eventually

pytestmark = pytest.mark.slow

PAGE = (ROOT / "docs/adopt.md").read_text()
COMMANDS = re.findall(r"^ *\$ attachment-ledger (.*)$", PAGE, re.MULTILINE)

HOST = "hv1"
WHY = "rack 3 goes first"
#: Two of the agent's polls.
DOWN_S = 10.0


def act(watched: Watched, name: str, *, dry_run: bool = False, code: int = 200) -> dict[str, Any]:
    """What the API says of an act on the host."""
    path = f"/v1/hosts/{HOST}/{name}" + ("?dry_run=true" if dry_run else "")
    body = {} if dry_run else {"reason": WHY}
    answer = watched.stack.http.post(watched.stack.url(path), json=body)
    assert answer.status_code == code, answer.text
    return dict(answer.json())


def server_of(report: dict[str, Any], server: Server) -> dict[str, Any]:
    return next(each for each in report["servers"] if each["server_id"] == server.id)


def test_the_console_shows_the_preflight_and_then_adopts_once(watched: Watched) -> None:
    nova, stack = watched.nova, watched.stack
    server, busy = nova.boot("db"), nova.boot("busy")
    volume = watched.volume()
    nova.attach(server, volume)
    busy.task_state = "rebooting"
    server.locked = busy.locked = True
    stack.start_service()
    watched.until("volumes", volume, "BlockDeviceMapping.DevicePlugged")
    page = f"/ui/hosts/{HOST}/adopt"
    shown = f'href="/ui/hosts/{HOST}"'  # by a projection, which the history does not wait for
    eventually(lambda: shown in stack.get("/ui/hosts").text, "it is seen, and Nova's")
    back = f"/ui/hosts/{HOST}/hand_back"

    def offered() -> set[str]:
        told = stack.get(f"/ui/hosts/{HOST}").text
        return {each for each in (page, back) if f'href="{each}"' in told}

    assert offered() == {page}, "it was never adopted"

    before = watched.head()
    assert "<button class" not in stack.get(page).text, "nova-compute is not disabled"
    nova.disabled.add(HOST)
    told = stack.get(page).text
    assert "adoptable" in told
    assert "Nova is at it: rebooting." in told
    assert watched.head() == before, "nothing is done yet"
    [form] = re.findall(r'name="form" value="([^"]+)"', told)
    sent = {"form": form, "reason": WHY}
    for _ in range(2):
        answer = stack.http.post(stack.url(page), data=sent, allow_redirects=False)
        assert (answer.status_code, answer.headers["Location"]) == (303, f"/ui/hosts/{HOST}")
    assert watched.until("servers", server.id, "Instance.Adopted")["body"]["reason"] == WHY
    assert watched.topics("servers", server.id).count("Instance.Adopted") == 1
    assert "Instance.Adopted" not in watched.topics("servers", busy.id)
    told = stack.get(page).text
    assert "adopted" in told
    assert "<button class" not in told, "what is left stays"
    assert offered() == {page, back}
    eventually(lambda: not watched.attachments(volume=volume)[0]["origin"], "it is the ledger's")
    assert "seen at Nova" in stack.get("/ui/attachments").text, "who attached it does not change"
    [host] = stack.get("/v1/hosts").json()["hosts"]
    assert (host["host"], host["service_version"], host["alive"]) == (HOST, None, False)
    assert "no agent yet" in stack.get("/ui/hosts").text
    told = stack.get(back).text
    assert "returnable" in told
    [form] = re.findall(r'name="form" value="([^"]+)"', told)
    sent = {"form": form, "reason": "not yet"}
    answer = stack.http.post(stack.url(back), data=sent, allow_redirects=False)
    assert answer.status_code == 303, answer.text
    assert offered() == {page}, "it is Nova's again"
    assert stack.get("/v1/hosts").json()["hosts"] == []


def test_a_host_goes_over_and_its_volumes_are_worked_on(watched: Watched) -> None:
    nova, stack = watched.nova, watched.stack
    server, busy = nova.boot("db"), nova.boot("busy")
    new, old = watched.volume(), watched.volume()
    mappings = (nova.attach(server, new), nova.attach_by_old_calls(server, old))
    busy.task_state = "rebooting"
    server.locked = busy.locked = True
    nova.disabled.add(HOST)
    watched.on_the_host(server, *mappings)
    stack.start_service()
    watched.until("volumes", new, "BlockDeviceMapping.DevicePlugged")
    watched.next_looks()
    before = watched.head()

    told = act(watched, "adopt", dry_run=True)
    assert server_of(told, server)["state"] == "adoptable"
    assert any("old calls" in each for each in server_of(told, server)["notes"])
    assert server_of(told, busy)["why"] == ["Nova is at it: rebooting."]
    assert watched.head() == before

    done = act(watched, "adopt")
    assert (server_of(done, server)["state"], done["whole"]) == ("adopted", False)
    assert server_of(done, busy)["state"] == "stays"
    adopted = watched.until("servers", server.id, "Instance.Adopted")
    assert (adopted["body"]["reason"], adopted["body"]["came_from"]) == (WHY, "nova")
    assert "Instance.Adopted" not in watched.topics("servers", busy.id)
    again = watched.head()
    assert server_of(act(watched, "adopt"), server)["state"] == "adopted"
    assert watched.head() == again

    assert stack.detach(server.id, new).status_code == 409, "its agent has not come"
    stack.servers[server.id] = HOST
    stack.start_agent(HOST)
    log = stack.agents[HOST].log
    eventually(lambda: "nova-compute on host hv1 is up" in log.read_text(), "is refused")
    assert "Host.HostRegistered" not in watched.topics("hosts", HOST)
    nova.down.add(HOST)
    stack.wait_for_host(HOST)
    eventually(lambda: new in str(stack.disks(server.id)), "the guest has its disk")
    eventually(lambda: stack.detach(server.id, new).status_code == 202, "is accepted")
    watched.until("volumes", new, "BlockDeviceMapping.MappingEnded")
    assert nova.cinder.attachments_of(new) == []
    stack.completed(stack.attach(server.id, new))
    stack.completed(stack.detach(server.id, old))
    assert nova.cinder.attachments_of(old) == []
    stack.check_host(HOST)
    assert {each.split(" ")[0] for each in nova.asked} == {"GET"}
    assert stack.act(busy.id, "os-stop").status_code == 409


def test_before_anything_was_done_a_host_goes_back_at_no_cost(watched: Watched) -> None:
    nova, stack = watched.nova, watched.stack
    server = nova.boot("db")
    new, old = watched.volume(), watched.volume()
    mapping = nova.attach(server, new)
    nova.attach_by_old_calls(server, old)
    server.locked = True
    stack.start_service()
    watched.until("volumes", new, "BlockDeviceMapping.DevicePlugged")
    enabled = act(watched, "adopt", code=409)
    assert "service there is enabled" in enabled["detail"]
    nova.disabled.add(HOST)
    act(watched, "adopt")

    told = act(watched, "hand_back", dry_run=True)
    assert (server_of(told, server)["state"], told["whole"]) == ("returnable", True)
    done = act(watched, "hand_back")
    assert (server_of(done, server)["state"], server_of(done, server)["sql"]) == (
        "handed_back",
        None,
    )
    assert watched.topics("hosts", HOST)[-1] == "Host.HandedBack"
    watched.next_looks()
    quiet = watched.head()
    watched.next_looks()
    assert watched.head() == quiet, "what is seen is what was handed back"
    nova.detach(server, mapping)
    watched.until("volumes", new, "Attachment.Deleted")
    assert "Send the request to Nova" in stack.detach(server.id, old).text
    assert act(watched, "hand_back", code=409)["code"] == "not_adopted_host"


def _ends(watched: Watched) -> None:
    """The agent does, and is missed."""
    watched.stack.agents[HOST].kill()
    path = f"/v1/hosts/{HOST}"
    eventually(lambda: not watched.stack.get(path).json()["alive"], "its agent is missed")


def test_after_changes_it_goes_back_once_nova_has_them(watched: Watched) -> None:
    nova, stack = watched.nova, watched.stack
    server, busy = nova.boot("db"), nova.boot("busy")
    first, second, theirs = watched.volume(), watched.volume(), watched.volume()
    mapping = nova.attach(server, first)
    server.locked = busy.locked = True
    busy.task_state = "rebooting"
    nova.disabled.add(HOST)
    watched.on_the_host(server, mapping)
    watched.on_the_host(busy, nova.attach(busy, theirs))
    stack.host_down_after_s = DOWN_S
    stack.start_service()
    watched.until("volumes", first, "BlockDeviceMapping.DevicePlugged")
    act(watched, "adopt")
    nova.down.add(HOST)
    stack.servers[server.id] = HOST
    stack.start_agent(HOST)
    stack.wait_for_host(HOST)
    eventually(lambda: stack.detach(server.id, first).status_code == 202, "is accepted")
    watched.until("volumes", first, "BlockDeviceMapping.MappingEnded")
    stack.completed(stack.attach(server.id, second))

    assert act(watched, "hand_back", code=409)["code"] == "host_answers"
    assert "Volume.SeenInGuest" in watched.topics("volumes", theirs), "of a guest that stays Nova's"
    _ends(watched)
    refused = server_of(act(watched, "hand_back"), server)
    assert (refused["state"], refused["sql"].count("deleted = id")) == ("stays", 1)
    seen = replace(seen_server(server.shown()), mappings=(seen_mapping(mapping.shown(server.id)),))
    database = NovaDatabase(
        ServerFacts(
            seen=seen,
            locked=True,
            local_disks=False,
            networks=False,
            attachments=(),
            volumes={},
        )
    )
    assert database.execute(refused["sql"]) == [1, 1]
    server.mappings = [
        Mapping(each.volume_id, str(each.attachment_id), f"/dev/{each.device}", each.id)
        for each in database.seen().mappings or ()
    ]
    done = act(watched, "hand_back")
    assert (server_of(done, server)["state"], done["whole"]) == ("handed_back", True)
    assert watched.topics("volumes", theirs)[-1] == "Volume.GoneFromGuest"
    watched.next_looks()
    (row,) = watched.attachments(volume=second)
    assert (row["origin"], row["state"]) == ("nova", "attached")


def test_the_page_leads_over_and_back(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nova, stack = watched.nova, watched.stack
    server, volume = nova.boot("db"), watched.volume()
    mapping = nova.attach(server, volume)
    server.locked = True
    nova.disabled.add(HOST)
    watched.on_the_host(server, mapping)
    stack.host_down_after_s = DOWN_S
    stack.start_service()
    watched.until("volumes", volume, "BlockDeviceMapping.DevicePlugged")
    monkeypatch.setenv("LEDGER_URL", stack.url(""))
    monkeypatch.setenv("LEDGER_TOKEN", ADMIN)
    told: dict[str, str] = {}

    def typed(command: str) -> None:
        capsys.readouterr()
        assert shell.main(shlex.split(command.replace("SERVER", server.id))) == 0, command
        told[command] = capsys.readouterr().out

    over, back = COMMANDS[:3], COMMANDS[-2:]
    server.locked = False
    assert shell.main(shlex.split(over[0])) == ExitCode.NOT_ALL
    server.locked = True
    for command in over:
        typed(command)
    assert f"{server.id} db: adoptable" in told[over[0]]
    assert "rack 3 goes first" in told[over[2]]
    nova.down.add(HOST)
    stack.servers[server.id] = HOST
    stack.start_agent(HOST)
    stack.wait_for_host(HOST)
    eventually(lambda: stack.get(f"/v1/hosts/{HOST}").json()["guests"] == 1, "it shows its guest")
    for command in COMMANDS[3:-2]:
        typed(command)
    assert "completed" in told["attachment refresh --host hv1 --wait"]
    _ends(watched)
    for command in back:
        typed(command)
    assert told[back[0]].strip() == "", "Nova has it as it is"
    assert f"{server.id} db: handed_back" in told[back[1]]
    assert {each.split(" ")[0] for each in nova.asked} == {"GET"}


def test_an_adopted_host_is_forgotten_once_nova_says_too_that_it_is_gone(watched: Watched) -> None:
    nova, stack = watched.nova, watched.stack
    server = nova.boot("db")
    server.locked = True
    nova.disabled.add(HOST)
    nova.down.add(HOST)
    volume = watched.volume()
    watched.on_the_host(server, nova.attach(server, volume))
    stack.host_down_after_s = DOWN_S
    stack.start_service()
    watched.until("volumes", volume, "BlockDeviceMapping.DevicePlugged")
    act(watched, "adopt")
    stack.start_agent(HOST)
    stack.wait_for_host(HOST)
    path = stack.url(f"/v2.1/servers/{server.id}")

    def deletion() -> Response | None:
        answer = stack.http.delete(path)
        return answer if answer.ok else None

    stack.completed(eventually(deletion, "its guest is shown"))
    _ends(watched)
    assert "Fence it first" in act(watched, "forget", code=409)["detail"]
    fence = {"reason": WHY, "evidence": "it lies in the yard"}
    assert stack.http.post(stack.url(f"/v1/hosts/{HOST}/fence"), json=fence).status_code == 200
    nova.down.remove(HOST)
    assert "Delete it in Nova first" in act(watched, "forget", code=409)["detail"]
    nova.down.add(HOST)
    act(watched, "forget")
    assert stack.get("/v1/hosts").json()["hosts"] == []

    act(watched, "adopt")
    assert watched.topics("hosts", HOST)[-3:] == ["Host.Deleted", "Host.HostSeen", "Host.Adopted"]
    [host] = stack.get("/v1/hosts").json()["hosts"]
    assert (host["fenced"], host["epoch"]) == (True, 2), "it is what it was"
