"""A Nova that runs is watched: the service in its own process, PostgreSQL, a simulated Nova and its
simulated Cinder over HTTP.  What Nova does is in the ledger's history, and nothing of ours is done.
"""

from __future__ import annotations

import re
import shlex
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from ledger.cli import shell
from tests.doubles.simulated_keystone import SimulatedKeystone
from tests.doubles.simulated_nova import Mapping, Server, running_nova
from tests.service.watched_world import INTERVAL_S, Watched
from tests.stack import ROOT, Stack, eventually

pytestmark = pytest.mark.slow

#: How well a process knows the database's clock.
CLOCK = timedelta(milliseconds=20)
#: As deploy/systemd/attachment-ledger.service has it (TimeoutStopSec).
SYSTEMD_S = 30
READS = {"attachment_list", "attachment_show", "volume_list", "volume_show"}


def now() -> datetime:
    return datetime.now(UTC)


def holds(event: dict[str, Any], begun: datetime, ended: datetime) -> None:
    """The interval of what was seen has the moment at which it was done, between these two."""
    seen = event["body"]["seen"]
    assert seen["origin"] == "nova"
    assert event["cause"] == "observation"
    before, known = (
        datetime.fromisoformat(each) for each in (seen["before"], event["recorded_at"])
    )
    assert seen["after"] is None or datetime.fromisoformat(seen["after"]) <= ended + CLOCK, event
    assert begun - CLOCK <= before <= known + CLOCK, event


def test_what_nova_does_is_in_the_history_and_nothing_is_done_to_it(watched: Watched) -> None:
    nova, stack = watched.nova, watched.stack
    server, early = nova.boot("db"), watched.volume()
    nova.attach(server, early)
    before = nova.cinder.counts.copy()
    stack.start_service()

    # What was there before the first look: since when, nobody knows; Cinder says something.
    first = watched.until("volumes", early, "Attachment.ConnectorUpdated")
    assert first["body"]["seen"]["after"] is None
    assert first["body"]["seen"]["claimed"]
    watched.next_looks()
    quiet = watched.head()
    watched.next_looks(3)
    assert watched.head() == quiet, "a look that sees nothing new appends nothing"

    begun = now()
    volume = watched.volume()
    mapping = nova.attach(server, volume)
    ended = now()
    attached = watched.until("volumes", volume, "Attachment.Completed")
    holds(attached, begun, ended)
    assert attached["body"]["seen"]["after"] is not None
    assert attached["attachment_id"] == mapping.attachment_id
    holds(watched.until("volumes", volume, "BlockDeviceMapping.DevicePlugged"), begun, ended)
    (span,) = watched.attachments(volume=volume, at=now().isoformat().replace("+00:00", "Z"))
    assert span["host"] == "hv1"
    assert datetime.fromisoformat(span["from_seen"]["before"]) >= begun
    (row,) = watched.attachments(volume=volume)
    assert (row["origin"], row["state"], row["host"]) == ("nova", "attached", "hv1")
    assert "seen at Nova" in stack.get("/ui/attachments").text

    begun = now()
    nova.detach(server, mapping)
    ended = now()
    holds(watched.until("volumes", volume, "Attachment.Deleted"), begun, ended)
    holds(watched.until("volumes", volume, "BlockDeviceMapping.MappingEnded"), begun, ended)
    assert watched.attachments(volume=volume) == []

    nova.delete(server)
    watched.until("servers", server.id, "Instance.Deleted")
    watched.until("volumes", early, "Volume.Released")
    assert watched.topics("volumes", early)[-1] == "Volume.Released"

    assert {each.split(" ")[0] for each in nova.asked} == {"GET"}
    asked = {name for name, n in nova.cinder.counts.items() if n != before.get(name, 0)}
    assert "attachment_list" in asked
    assert asked <= READS


def test_what_was_asked_before_the_first_look_is_told_as_far_back_as_nova_knows(
    watched: Watched,
) -> None:
    nova, stack = watched.nova, watched.stack
    whole, cleared, garbled = (nova.boot(name) for name in ("whole", "cleared", "garbled"))
    whole.asked("create", "2026-11-01T12:00:00.000000")
    whole.asked("attach_volume", "2026-11-02T12:00:00.000000")
    cleared.asked("detach_volume", "2026-11-03T12:00:00.000000", "Error")
    garbled.asked("attach_volume", "yesterday")
    stack.start_service()

    told = watched.until("servers", whole.id, "Instance.ActionsSeen")
    assert told["body"]["actions"][1]["at"] == "2026-11-02T12:00:00+00:00"
    assert told["body"]["actions"][1]["request_id"].startswith("req-")
    assert told["body"]["whole"]
    assert told["body"]["seen"]["after"] is None
    told = watched.until("servers", cleared.id, "Instance.ActionsSeen")
    assert [each["event"] for each in told["body"]["actions"]] == ["detach_volume.error"]
    assert not told["body"]["whole"]
    watched.until("servers", garbled.id, "Instance.ServerSeen")
    watched.next_looks()
    assert "Instance.ActionsSeen" not in watched.topics("servers", garbled.id)
    asked = [each for each in nova.asked if "/os-instance-actions" in each]
    assert len(asked) == 3, "once each"


def test_a_live_migration_is_seen_as_it_goes_and_no_look_finds_drift_meanwhile(
    watched: Watched,
) -> None:
    nova, stack = watched.nova, watched.stack
    server, volume = nova.boot("web"), watched.volume()
    old = nova.attach(server, volume).attachment_id
    stack.start_service()
    watched.until("volumes", volume, "BlockDeviceMapping.DevicePlugged")

    begun = now()
    olds = nova.begin_live_migration(server, "hv2")
    middle = now()
    switched = watched.until("volumes", volume, "BlockDeviceMapping.AttachmentSwitched")
    holds(switched, begun, middle)
    holds(watched.until("volumes", volume, "Attachment.Completed", 2), begun, middle)
    at = now().isoformat().replace("+00:00", "Z")
    both = {row["host"] for row in watched.attachments(volume=volume, at=at)}
    assert both == {"hv1", "hv2"}, "for a while both have it"
    look = watched.look_at_drift()
    assert (look["outcome"], look["found"]) == ("completed", {}), "what is Nova's is not compared"

    begun = now()
    nova.end_live_migration(server, "hv2", olds)
    ended = now()
    gone = watched.until("attachments", old, "Attachment.Deleted")
    holds(gone, begun, ended)
    moved = watched.until("servers", server.id, "Instance.ServerSeen", 2)
    holds(moved, begun, ended)
    assert moved["body"]["host"] == "hv2"
    (row,) = watched.attachments(volume=volume)
    assert row["host"] == "hv2"
    assert [each["host"] for each in watched.attachments(volume=volume, at=at)] != []

    nova.shelve_offload(server)
    watched.until("volumes", volume, "BlockDeviceMapping.AttachmentSwitched", 2)
    eventually(lambda: stack.server(server.id)["status"] == "SHELVED_OFFLOADED", "is shelved")


def test_an_evacuation_is_seen_whole_though_no_look_saw_it_on_its_way(watched: Watched) -> None:
    nova, stack = watched.nova, watched.stack
    server, volume = nova.boot("web"), watched.volume()
    old = nova.attach(server, volume).attachment_id
    stack.start_service()
    watched.until("volumes", volume, "BlockDeviceMapping.DevicePlugged")
    at = now().isoformat().replace("+00:00", "Z")

    begun = now()
    nova.evacuate(server, "hv2")
    ended = now()
    for of, id_, topic, number in (
        ("attachments", old, "Attachment.Deleted", 1),
        ("volumes", volume, "BlockDeviceMapping.AttachmentSwitched", 1),
        ("volumes", volume, "Attachment.Completed", 2),
        ("servers", server.id, "Instance.ServerSeen", 2),
    ):
        holds(watched.until(of, id_, topic, number), begun, ended)
    assert [row["host"] for row in watched.attachments(volume=volume)] == ["hv2"]
    assert [row["host"] for row in watched.attachments(volume=volume, at=at)] == ["hv1"]


def test_what_happened_while_nobody_looked_has_an_interval_that_holds_it(watched: Watched) -> None:
    nova, stack = watched.nova, watched.stack
    server, volume = nova.boot("db"), watched.volume()
    mapping = nova.attach(server, volume)
    stack.start_service()
    watched.until("volumes", volume, "BlockDeviceMapping.DevicePlugged")
    watched.next_looks()
    stack.components[0].kill()

    begun = now()
    nova.detach(server, mapping)
    other = watched.volume()
    nova.attach(server, other)
    ended = now()
    stack.start_service()
    gone = watched.until("volumes", volume, "Attachment.Deleted")
    holds(gone, begun, ended)
    assert gone["body"]["seen"]["after"] is not None, "the process before has told when it looked"
    attached = watched.until("volumes", other, "Attachment.Completed")
    holds(attached, begun, ended)
    assert attached["body"]["seen"]["after"] == gone["body"]["seen"]["after"]


@pytest.mark.parametrize("broken", ["/servers/detail", "marker="])
def test_a_look_that_cannot_see_everything_ends_nothing(watched: Watched, broken: str) -> None:
    nova, stack = watched.nova, watched.stack
    server, volume = nova.boot("db"), watched.volume()
    mapping = nova.attach(server, volume)
    stack.start_service()
    watched.until("volumes", volume, "BlockDeviceMapping.DevicePlugged")
    watched.next_looks()

    nova.broken.add(broken)
    begun = now()
    nova.detach(server, mapping)
    ended = now()
    log = stack.components[0].log
    failed = log.read_text().count("look_at_nova_failed")
    eventually(lambda: log.read_text().count("look_at_nova_failed") > failed + 2, "looks fail")
    assert "Attachment.Deleted" not in watched.topics("volumes", volume)
    told = stack.get("/readyz").json()
    assert "told nothing" in str(told), told
    nova.broken.clear()
    holds(watched.until("volumes", volume, "Attachment.Deleted"), begun, ended)
    eventually(lambda: "told nothing" not in str(stack.get("/readyz").json()), "all is well again")


def test_a_server_of_which_nova_does_not_tell_stays_as_it_was(watched: Watched) -> None:
    nova, stack = watched.nova, watched.stack
    quiet, other = nova.boot("quiet"), nova.boot("other")
    volume, more = watched.volume(), watched.volume()
    mapping = nova.attach(quiet, volume)
    stack.start_service()
    watched.until("volumes", volume, "BlockDeviceMapping.DevicePlugged")
    watched.next_looks()

    nova.broken.add(f"{quiet.id}/os-volume_attachments")
    begun = now()
    nova.detach(quiet, mapping)
    ended = now()
    nova.attach(other, more)
    watched.until("volumes", more, "Attachment.Completed")
    watched.next_looks()
    assert "Attachment.Deleted" not in watched.topics("volumes", volume)
    nova.broken.clear()
    holds(watched.until("volumes", volume, "BlockDeviceMapping.MappingEnded"), begun, ended)
    holds(watched.until("volumes", volume, "Attachment.Deleted"), begun, ended)


def test_a_nova_that_does_not_answer_keeps_no_service_from_ending(watched: Watched) -> None:
    """As long as it is waited for (TIMEOUT_S, several times), systemd would kill it meanwhile."""
    nova = watched.nova
    nova.boot("db")
    watched.stack.start_service()
    watched.next_looks()
    nova.silent.set()
    asked = len(nova.asked)
    eventually(lambda: len(nova.asked) > asked, "Nova is asked")
    began = time.monotonic()
    assert watched.stack.components[0].stop() == 0
    assert time.monotonic() - began < SYSTEMD_S


def test_what_a_member_calls_a_server_and_a_host_stops_no_look(watched: Watched) -> None:
    """Cinder takes both as they come; no database of ours would."""
    nova = watched.nova
    server, volume = nova.boot("db"), watched.volume()
    row = nova.cinder.attachment_create(volume, server.id, {"host": "hv1\0"})
    nova.cinder.attachment_complete(row.id)
    nova.cinder.attachment_create(watched.volume(), f"urn:{uuid4().hex}")
    watched.stack.start_service()
    seen = watched.until("volumes", volume, "Attachment.Completed")
    assert seen["host"] == r"hv1\u0000"
    watched.next_looks()


def test_what_a_mended_database_of_novas_holds_is_refused_and_the_rest_is_recorded(
    watched: Watched,
) -> None:
    """Whoever mends it by hand writes what no Nova does."""
    nova, some = watched.nova, str(uuid4())
    for number, odd in enumerate(("volume", "attachment", "mapping")):
        ids = {"volume": some, "attachment": some, "mapping": some, odd: f"garbage {number}"}
        row = Mapping(ids["volume"], ids["attachment"], "/dev/vdb", id=ids["mapping"])
        nova.boot(odd).mappings.append(row)
    shown = nova.boot("a\0b\ud83d", host="hv1\0")
    server, volume = nova.boot("db"), watched.volume()
    nova.attach(server, volume)
    watched.stack.start_service()
    watched.until("volumes", volume, "BlockDeviceMapping.DevicePlugged")
    watched.next_looks()
    log = watched.stack.components[0].log.read_text()
    assert all(f"garbage {number}" in log for number in range(3))
    seen = watched.until("servers", shown.id, "Instance.ServerSeen")
    assert (seen["body"]["name"], seen["host"]) == (r"a\u0000b\ud83d", r"hv1\u0000")


def test_looks_at_drift_compare_what_is_ours_alone(watched: Watched) -> None:
    nova, stack = watched.nova, watched.stack
    stack.settings = stack.settings.replace(f"interval_s = {INTERVAL_S}", "interval_s = 3600.0")
    server, volume, lost = nova.boot("db"), watched.volume(), stack.add_volume()
    mapping = nova.attach(server, volume)
    stack.start_service()
    watched.until("volumes", volume, "BlockDeviceMapping.DevicePlugged")
    own = stack.add_server()
    stack.start_agent()
    stack.wait_for_host()
    stack.completed(stack.attach(own, lost))

    nova.detach(server, mapping)  # nobody has looked since
    nova.attach(server, watched.volume())
    (row,) = nova.cinder.attachments_of(lost)
    nova.cinder.attachment_delete(row.id)
    look = watched.look_at_drift()
    assert look["outcome"] == "completed"
    assert look["found"] == {"attachment_lost": 1}
    findings = stack.get("/v1/drift?state=suspected").json()["findings"]
    assert {each["volume_id"] for each in findings} == {lost}


def test_a_server_of_novas_is_novas_though_a_host_of_ours_has_shown_it_first(
    watched: Watched,
) -> None:
    """A host may have been broken into.  What an operation of ours has worked on stays ours."""
    nova, stack = watched.nova, watched.stack
    shown, own = stack.add_server(), stack.add_server()
    stack.start_service()
    stack.start_agent()
    stack.wait_for_host()
    stack.completed(stack.attach(own, volume := stack.add_volume()))
    stack.completed(stack.detach(own, volume))
    for id_ in (shown, own):
        nova.servers[id_] = Server(id=id_, name="theirs", host="hv1")
    watched.until("servers", shown, "Instance.ServerSeen")
    refused = stack.attach(shown, stack.add_volume())
    assert (refused.status_code, "Send the request to Nova" in refused.text) == (409, True)
    watched.next_looks()
    assert "Instance.ServerSeen" not in watched.topics("servers", own)


def test_what_differs_is_a_finding_of_the_service_until_it_is_mended(watched: Watched) -> None:
    nova, stack = watched.nova, watched.stack
    server, volume = nova.boot("db"), watched.volume()
    fine = nova.attach(server, watched.volume())
    stack.service_under = ("tests.doubles.looks_at_once",)
    stack.start_service()
    watched.until("volumes", fine.volume_id, "BlockDeviceMapping.DevicePlugged")

    def drift(**of: str) -> list[dict[str, Any]]:
        asked = "&".join(f"{name}={value}" for name, value in of.items())
        return list(stack.get(f"/v1/drift?{asked}").json()["findings"])

    watched.next_looks(3)
    assert drift(state="all") == [], "nothing differs"
    row = nova.cinder.attachment_create(volume, server.id)
    [found] = eventually(lambda: drift(state="confirmed"), "a finding")
    assert (found["drift_class"], found["attachment_id"]) == ("reservation_unknown", row.id)
    assert (found["server_id"], found["volume_id"]) == (server.id, volume)
    shown = stack.get(f"/v1/drift/{found['finding_id']}").json()
    assert f"attachment delete {row.id}`" in shown["by_hand"]
    assert found["finding_id"] in stack.get("/ui/drift").text
    watched.next_looks(3)
    assert drift() == [found], "each look sees it, and it is told once"
    nova.cinder.attachment_delete(row.id)
    [over] = eventually(lambda: drift(state="over"), "its end")
    assert (over["finding_id"], over["over_how"]) == (found["finding_id"], "gone")
    assert {each.split(" ")[0] for each in nova.asked} == {"GET"}


def test_whoever_asks_us_for_what_is_novas_is_sent_to_nova(watched: Watched) -> None:
    nova, stack = watched.nova, watched.stack
    server, volume = nova.boot("db"), watched.volume()
    nova.attach(server, volume)
    stack.start_service()
    watched.until("volumes", volume, "BlockDeviceMapping.DevicePlugged")
    quiet = watched.head()
    answers = [
        stack.attach(server.id, watched.volume()),
        stack.detach(server.id, volume),
        stack.act(server.id, "os-stop"),
        stack.act(server.id, "reboot", {"type": "SOFT"}),
        stack.act(server.id, "lock"),
        stack.act(server.id, "os-resetState", {"state": "error"}),
        stack.http.delete(stack.url(f"/v2.1/servers/{server.id}")),
        stack.http.put(stack.url(f"/v2.1/servers/{server.id}"), json={"server": {"name": "x"}}),
        stack.http.put(
            stack.url(f"/v2.1/servers/{server.id}/os-volume_attachments/{volume}"),
            json={"volumeAttachment": {"volumeId": volume, "delete_on_termination": True}},
            headers={"OpenStack-API-Version": "compute 2.85"},
        ),
    ]
    for answer in answers:
        assert answer.status_code == 409, answer.text
        assert "Send the request to Nova" in answer.text
    stack.start_agent("hv1")
    told = eventually(
        lambda: "Send the request to Nova" in stack.agents["hv1"].log.read_text(),
        "the agent is told why",
    )
    assert told
    assert watched.head() == quiet
    shown = stack.attachments(server.id, "2.89")
    assert [each["volumeId"] for each in shown] == [volume]


PAGE = (ROOT / "docs/observe.md").read_text()
COMMANDS = re.findall(r"^ *\$ attachment-ledger (.*)$", PAGE.split("\n## ")[1], re.MULTILINE)
[SETTINGS, _] = re.findall(r"^ *```toml\n(.*?)```", PAGE, re.MULTILINE | re.DOTALL)


class WatchOnly(Stack):
    """The service with the settings of the page, of another cloud."""

    def _service_config(self, number: int) -> str:
        page = dict(line.strip().split(" = ", 1) for line in SETTINGS.splitlines() if "=" in line)
        assert set(page) == {"database_url", "auth_type", "auth_url"} | {
            f"application_credential_{name}" for name in ("id", "secret")
        }
        return (
            f'database_url = "{self.database_url}"\n[listen]\nport = {self.ports[number]}\n'
            f"{self.settings}"
        )


def test_the_page_leads_from_an_empty_machine_to_the_first_history(
    tmp_path: Path,
    database_url: str,
    keystone: SimulatedKeystone,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stack = WatchOnly(tmp_path, database_url)
    stack.start_cinder()
    with running_nova(stack.cinder.model) as nova:
        watched = Watched(stack, nova)
        watched.log_in(keystone.user("root", "admin", project="own"))
        server, volume = nova.boot("db"), watched.volume()
        nova.attach(server, volume)
        try:
            stack.start_service()
            watched.until("volumes", volume, "BlockDeviceMapping.DevicePlugged")
            monkeypatch.setenv("LEDGER_URL", stack.url(""))
            told = {}
            for command in COMMANDS[2:]:
                at = now().isoformat().replace("+00:00", "Z")
                line = command.replace("VOLUME", volume).replace("2026-11-27T12:00:00Z", at)
                capsys.readouterr()
                assert shell.main(shlex.split(line)) == 0, line
                told[command] = capsys.readouterr().out
            assert "db" in told["server list"]
            assert all(volume in told[each] for each in told if each.startswith("attachment"))
            assert told["history volume VOLUME"].count("Seen at Nova (by ") >= 5
            assert re.search(r"by Cinder at [-0-9]+ [:0-9]+\)", told["history volume VOLUME"])
            assert watched.topics("hosts", "hv1")[0] == "Host.HostSeen"
            eventually(lambda: "may do more than read" in stack.get("/readyz").text, "is warned")
            assert {each.split(" ")[0] for each in nova.asked} == {"GET"}
            assert set(nova.cinder.counts) <= READS
        finally:
            stack.close()


def test_who_does_not_see_all_of_cinder_records_nothing(
    watched: Watched, keystone: SimulatedKeystone
) -> None:
    nova, stack = watched.nova, watched.stack
    nova.cinder.volumes.clear()
    server, volume = nova.boot("db"), nova.cinder.add_volume(project_id="own").id
    nova.attach(server, volume)
    login = keystone.user("somebody", "service", project="own")
    kind = login.pop("auth_type")
    auth = "".join(f"{name} = '{value}'\n" for name, value in login.items())
    where = stack.settings.partition("[observe.auth]")[0]
    stack.settings = f"{where}[observe.auth]\nauth_type = '{kind}'\n{auth}"
    stack.start_service()
    eventually(lambda: "cannot be taken as missing" in stack.get("/readyz").text, "is told")
    assert watched.head() == 0


def test_one_endpoint_answers_for_what_is_watched_and_for_what_is_ours(
    watched: Watched, keystone: SimulatedKeystone
) -> None:
    nova, stack = watched.nova, watched.stack
    stack.auth = "keystone"
    login = keystone.user("ledger", "service", project="service")
    auth = "".join(f"{name} = '{value}'\n" for name, value in login.items())
    passing = stack.settings.replace("[observe]\n", f"[observe]\npass_on_to = '{nova.url}'\n")
    stack.settings = f"{passing}[keystone.auth]\n{auth}"
    theirs, volume = nova.boot("theirs"), watched.volume()
    mapping = nova.attach(theirs, volume)
    ours = stack.add_server()
    stack.start_service()
    stack.start_agent()
    stack.wait_for_host()
    watched.until("volumes", volume, "BlockDeviceMapping.DevicePlugged")

    token = keystone.token("root", "admin", project="own")
    headers = {"X-Auth-Token": token, "OpenStack-API-Version": "compute 2.89"}

    def asked(path: str) -> dict[str, Any]:
        answer = stack.http.get(stack.url(f"/v2.1/servers/{path}"), headers=headers)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    passed = len(nova.asked)
    assert asked(ours)["server"]["id"] == ours
    shown = asked(f"{theirs.id}/os-volume_attachments")["volumeAttachments"]
    assert shown == [mapping.shown(theirs.id)]
    assert f"GET /v2.1/servers/{theirs.id}/os-volume_attachments" in nova.asked[passed:]
    assert not any(ours in each for each in nova.asked)
