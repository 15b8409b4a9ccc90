"""The ledger beside a real Nova and a real Cinder: it watches, and answers for both.

Users, the unmodified client and Cinder ask the ledger alone, and cannot tell it from Nova.
"""

from __future__ import annotations

import configparser
import itertools
import json
import re
import subprocess
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from cinderclient import exceptions as cinder_errors

from tests.lab.nova.beside import NOVA_URL, SLOW_S, URL, Beside, beside, bus, lab
from tests.lab.nova.cloud import NOVA, NovaCloud, Work, survey, wait_until
from tests.lab.people import person
from tests.lab.settings import ENV, LAB_DIR, LOG_DIR, SETTLE_S
from tests.service.test_observe import holds, now
from tests.stack import ROOT

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def ledger() -> Iterator[Beside]:
    with beside() as running:
        yield running


@pytest.fixture(scope="module")
def cloud(ledger: Beside) -> NovaCloud:
    """In place of the one whose users ask Nova."""
    return NovaCloud(f"{URL}/v2.1")


def hosts(ledger: Beside, volume_id: str, at: datetime) -> set[str]:
    moment = at.isoformat().replace("+00:00", "Z")
    rows = ledger.get(f"/attachments?volume={volume_id}&at={moment}")["attachments"]
    return {row["host"] for row in rows}


def test_the_history_is_what_nova_did(ledger: Beside, cloud: NovaCloud) -> None:
    server, volume = cloud.server(), cloud.volume()
    known: list[tuple[datetime, set[str]]] = []

    def seen(topic: str, begun: datetime, *who: str, number: int = 1) -> None:
        """What was done since `begun`, and who has the volume then."""
        holds(ledger.until(volume, topic, number), begun, now())
        wait_until(lambda: hosts(ledger, volume, now()) == {*who}, f"{who} to have it")
        known.append((now(), {*who}))

    begun = now()
    attachment = cloud.attach(server, volume)
    seen("BlockDeviceMapping.DevicePlugged", begun, cloud.host(server))
    (row,) = ledger.get(f"/attachments?volume={volume}")["attachments"]
    assert (row["attachment_id"], row["origin"], row["state"]) == (attachment, "nova", "attached")
    begun = now()
    cloud.migrate(server)
    seen("BlockDeviceMapping.AttachmentSwitched", begun, cloud.host(server))
    begun = now()
    cloud.bring(server, "SHELVED_OFFLOADED", shelve=None)
    seen("BlockDeviceMapping.AttachmentSwitched", begun, number=2)  # reserved
    begun = now()
    cloud.bring(server, "ACTIVE", unshelve=None)  # it keeps that attachment
    seen("Attachment.Completed", begun, cloud.host(server), number=3)
    begun = now()
    cloud.detach(server, volume)
    seen("BlockDeviceMapping.MappingEnded", begun)
    for at, who in known:
        assert hosts(ledger, volume, at) == who, f"an answer once given stays the answer: {at}"


def test_an_evacuation_is_seen_and_what_was_so_before_it(ledger: Beside, cloud: NovaCloud) -> None:
    server, volume = cloud.server(), cloud.volume()
    old = cloud.attach(server, volume)
    ledger.until(volume, "BlockDeviceMapping.DevicePlugged")
    source, before = cloud.host(server), now()
    lab(f"stop nova-{source}")
    try:
        cloud.set_service(source, forced_down=True)
        begun = now()
        cloud.bring(server, "SHUTOFF", evacuate={})  # from 2.95 on it is not started
        holds(ledger.until(volume, "BlockDeviceMapping.AttachmentSwitched"), begun, now())
        destination = cloud.host(server)
        assert destination != source
        wait_until(lambda: hosts(ledger, volume, now()) == {destination}, "it to be seen there")
    finally:
        lab("exec ./nova.sh up")
        cloud.set_service(source, forced_down=False)
    wait_until(lambda: cloud.service(source)["state"] == "up", "its old host to be up again")
    assert hosts(ledger, volume, before) == {source}
    deleted = ledger.until(volume, "Attachment.Deleted")
    assert deleted["attachment_id"] == old
    cloud.detach(server, volume)
    ledger.until(volume, "BlockDeviceMapping.MappingEnded")


def test_what_nova_tells_says_who_asked(ledger: Beside, cloud: NovaCloud) -> None:
    """By its own bus; and the place of a volume in the boot order, if it has one."""
    page, nova = (configparser.RawConfigParser() for _ in range(2))
    [block] = re.findall(r"```ini\n(.*?)```", (ROOT / "docs/observe.md").read_text(), re.DOTALL)
    page.read_string(block)
    nova.read(LAB_DIR / "etc/nova/nova.conf")
    for section in page.sections():
        wanted = {name: value for name, value in page[section].items() if name != "transport_url"}
        assert wanted.items() <= dict(nova[section]).items()
    server, volume = cloud.server(), cloud.volume()
    cloud.attach(server, volume)
    begun = ledger.until(volume, "Attachment.Completed")["body"]["seen"]["told"]
    cloud.detach(server, volume)
    ended = ledger.until(volume, "Attachment.Deleted")["body"]["seen"]["told"]
    assert "attachment-ledger\tledger" in bus(
        "rabbitmqctl list_queues -p notifications name policy"
    ), "the policy is our queue's"
    assert begun["event"].startswith("instance.volume_attach.")
    assert ended["event"].startswith("instance.volume_detach.")
    assert begun["user_id"] == ended["user_id"]
    assert begun["request_id"].startswith("req-")
    assert begun["request_id"] != ended["request_id"]


def test_a_server_is_over_as_soon_as_nova_lists_it_as_deleted(
    ledger: Beside, cloud: NovaCloud
) -> None:
    """A credential that may not list it so would wait for a day."""
    server, volume = cloud.server(), cloud.volume()
    cloud.attach(server, volume)
    ledger.until(volume, "BlockDeviceMapping.DevicePlugged")
    begun = now()
    cloud.delete_server(server)
    ended = now()

    def over() -> list[dict[str, Any]]:
        story = ledger.events(f"/servers/{server}")
        return [each for each in story if each["topic"] == "Instance.Deleted"]

    [event] = wait_until(over, f"the end of {server}", SETTLE_S + SLOW_S)
    holds(event, begun, ended)


def test_who_asked_is_told_after_the_bus_was_restarted(ledger: Beside, cloud: NovaCloud) -> None:
    server, volume = cloud.server(), cloud.volume()
    lab("stop rabbitmq && exec ./nova.sh up")
    cloud.wait_for_calls(server)
    begun = now()
    cloud.attach(server, volume)
    seen = ledger.until(volume, "Attachment.Completed")
    holds(seen, begun, now())
    assert seen["body"]["seen"]["told"]["event"].startswith("instance.volume_attach.")


def test_what_began_while_the_ledger_was_down_is_told_in_an_interval(
    ledger: Beside, cloud: NovaCloud
) -> None:
    server, volume, other = cloud.server(), cloud.volume(), cloud.volume()
    cloud.attach(server, volume)
    ledger.until(volume, "BlockDeviceMapping.DevicePlugged")
    ledger.process.kill()
    try:
        plain, begun = NovaCloud(f"{NOVA_URL}/v2.1"), now()
        plain.detach(server, volume)
        plain.attach(server, other)
        ended = now()
    finally:  # all tests that follow ask it
        ledger.start()
    gone = ledger.until(volume, "BlockDeviceMapping.MappingEnded")
    holds(gone, begun, ended)
    assert gone["body"]["seen"]["after"] is not None
    holds(ledger.until(other, "BlockDeviceMapping.DevicePlugged"), begun, ended)
    (told,) = [
        each["body"]
        for each in ledger.events(f"/servers/{server}")
        if each["topic"] == "Instance.ActionsSeen"
    ]
    assert told["actions"][0]["event"] == "create"
    assert told["whole"]


def history(*words: str) -> str:
    """What the command prints."""
    command = [f"{ENV['LAB_VENV']}/bin/attachment-ledger", "history", *words]
    env = {**ENV, "LEDGER_URL": URL, "LEDGER_TOKEN": ENV["LAB_OPERATOR_TOKEN"]}
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def test_what_ended_unseen_is_imported_from_novas_database(
    ledger: Beside, cloud: NovaCloud
) -> None:
    """By MariaDB's client, as docs/observe.md has it."""
    kept = cloud.server()
    wait_until(lambda: ledger.events(f"/servers/{kept}"), "it to be seen")
    ledger.process.kill()
    try:
        plain = NovaCloud(f"{NOVA_URL}/v2.1")
        detached, deleted, gone = plain.volume(), plain.volume(), plain.server()
        ids = {detached: plain.attach(kept, detached), deleted: plain.attach(gone, deleted)}
        plain.detach(kept, detached)
        plain.delete_server(gone)
        plain.wait_status(deleted, "available")
    finally:  # all tests that follow ask it
        ledger.start()
    batch = ("--batch", "--raw", "--skip-column-names")
    file = ledger.home / "past.jsonl"
    file.write_text(cloud.nova_database(history("sql"), *batch))
    told = json.loads(history("import", str(file), "-f", "json"))
    assert told["recorded"] >= 3, "the root of the deleted server is a volume, too"
    assert told["refused"] == []
    for volume, server in ((detached, kept), (deleted, gone)):
        of_server = ledger.events(f"/servers/{server}")
        [event] = ledger.history(volume)
        assert event in of_server
        assert event["topic"] == "BlockDeviceMapping.DeletedRowSeen"
        assert event["attachment_id"] == ids[volume]
        assert event["body"]["device_name"].startswith("/dev/")
        assert (
            event["body"]["created_at"] <= event["body"]["deleted_at"] <= event["body"]["read_at"]
        )
    assert {each["topic"] for each in of_server} == {"BlockDeviceMapping.DeletedRowSeen"}
    assert ledger.get(f"/attachments?volume={deleted}&open=false")["attachments"] == []
    file.write_text(cloud.nova_database(history("sql"), *batch))
    again = json.loads(history("import", str(file), "-f", "json"))
    assert (again["recorded"], again["refused"]) == (0, [])


def test_the_unmodified_client_works_through_it(cloud: NovaCloud) -> None:
    server, volume = cloud.server(), cloud.volume()

    def asked(command: str) -> Any:
        return json.loads(cloud.openstack(f"openstack {command} -f json"))

    def attached() -> list[str]:
        return [each["Volume ID"] for each in asked(f"server volume list {server}")]

    assert server in {each["ID"] for each in asked("server list --all-projects")}
    (root,) = attached()
    cloud.openstack(f"openstack server add volume {server} {volume}")
    wait_until(lambda: set(attached()) == {root, volume}, "the client to show it")
    cloud.wait_status(volume, "in-use")
    wait_until(lambda: cloud.rests(server), "Nova to have ended it")
    cloud.openstack(f"openstack server reboot --hard --wait {server}")
    cloud.openstack(f"openstack server remove volume {server} {volume}")
    cloud.wait_status(volume, "available")
    assert {each["Host"] for each in asked("compute service list")} >= {"compute-1", "compute-2"}
    assert asked("hypervisor list")
    assert asked("server event list " + server)
    cloud.openstack(f"openstack server delete --wait {server}")
    wait_until(lambda: cloud.status(volume) == "available", "it to be free")


def test_the_answer_is_novas_but_for_what_is_of_the_moment(cloud: NovaCloud) -> None:
    server = cloud.server()
    session = person("member").session
    for path in (
        "/v2.1/flavors/detail",
        f"/v2.1/servers/{server}",
        f"/v2.1/servers/{server}/os-volume_attachments",
        f"/v2.1/servers/{server}/os-instance-actions",
        f"/v2.1/servers/{server}/os-interface",
        "/v2.1/limits",
        "/v2.1/os-keypairs",
        "/v2.1/servers/no-such-server",
        f"/v2.1/servers/{server}/os-volume_attachments/no-such-volume",
        "/v2.1/os-services",
    ):
        ours, novas = (
            session.get(f"{base}{path}", headers=NOVA, raise_exc=False) for base in (URL, NOVA_URL)
        )
        assert ours.status_code == novas.status_code, path
        bodies = [
            each.text.replace(base, "").replace(each.headers["X-Compute-Request-Id"], "")
            for each, base in ((ours, URL), (novas, NOVA_URL))
        ]
        assert bodies[0] == bodies[1], path
        passing = {"Date", "X-Compute-Request-Id", "X-Openstack-Request-Id", "Content-Length"}
        names = [set(each.headers) - passing - {"Connection", "Server"} for each in (ours, novas)]
        assert names[0] == names[1], path


def test_cinder_deletes_for_a_user_only_what_nobody_has(cloud: NovaCloud) -> None:
    """CVE-2023-2088: Cinder asks the compute endpoint, which is the ledger's."""
    server, volume = cloud.server(), cloud.volume()
    attachment = cloud.attach(server, volume)
    with pytest.raises(cinder_errors.ClientException) as refused:
        cloud.cinder.attachments.delete(attachment)
    assert refused.value.code == 409
    cloud.wait_status(volume, "in-use")

    forgotten = cloud.volume()
    left = cloud.attachment(server, forgotten, used=True)
    cloud.delete_server(server)
    cloud.wait_status(volume, "available")
    cloud.cinder.attachments.delete(left)
    cloud.wait_status(forgotten, "available")


def test_what_is_broken_by_hand_becomes_a_finding_that_is_over_once_it_is_mended(
    ledger: Beside, cloud: NovaCloud
) -> None:
    """By the service's own looks, a minute apart; mended by the command that the finding names."""
    server, volume = cloud.server(), cloud.volume()
    attachment = cloud.attachment(server, volume, used=True)
    found = ledger.finding(volume, "confirmed")
    assert (found["drift_class"], found["attachment_id"]) == ("attachment_unknown", attachment)
    assert (found["server_id"], found["repair"]) == (server, None)
    told = ledger.get(f"/drift/{found['finding_id']}")
    assert told["acts"] == ["ignore"]
    [command] = re.findall(r"`(openstack [^`]+)`", told["by_hand"])
    assert attachment in command
    cloud.openstack(command)
    over = ledger.finding(volume, "over")
    assert (over["finding_id"], over["over_how"]) == (found["finding_id"], "gone")


def test_while_nova_is_away_its_requests_are_503_and_then_it_goes_on(
    ledger: Beside, cloud: NovaCloud
) -> None:
    server, volume = cloud.server(), cloud.volume()
    attachment = cloud.attach(server, volume)
    ledger.until(volume, "BlockDeviceMapping.DevicePlugged")
    lab("stop nova-api")
    try:
        away = cloud.of_member.get(f"/servers/{server}", raise_exc=False, headers=NOVA)
        assert away.status_code == 503
        with pytest.raises(cinder_errors.ClientException):
            cloud.cinder.attachments.delete(attachment)
        assert ledger.history(volume)
    finally:
        lab("exec ./nova.sh up")
    wait_until(lambda: cloud.shown(server)["status"] == "ACTIVE", "Nova to be back")
    cloud.detach(server, volume)
    ledger.until(volume, "BlockDeviceMapping.MappingEnded")


def test_a_cloud_at_work_through_it_is_clean_and_its_history_whole(
    ledger: Beside, cloud: NovaCloud
) -> None:
    found: list[tuple[int, Any]] = []
    before, looks = ledger.get("/events/checkpoint")["position"], ledger.looks()
    with Work(cloud) as work:
        while work.goes_on():
            found.append(survey("--apart", "3s")[:2])
    volumes = [*itertools.chain(*work.done.values())]
    for volume in volumes:  # what no look saw begin, none sees end
        if ledger.history(volume):
            ledger.until(volume, "BlockDeviceMapping.MappingEnded")
    findings = sum(len(each[1]) for each in found)
    ours = [each for each in ledger.findings("all") if each["found_position"] > before]
    told = f"{len(volumes)} rounds, {len(found)} surveys, {findings} findings; "
    told += f"{ledger.looks() - looks} looks of the service, {len(ours)} findings\n"
    (LOG_DIR / "times.txt").write_text(told)  # as all figures of a run are
    assert (found, ours) == ([(0, [])] * len(found), [])
    assert survey("--apart", "1s")[:2] == (0, [])
