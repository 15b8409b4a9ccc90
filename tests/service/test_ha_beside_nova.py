"""InstanceHA beside a Nova (docs/ha-controllers.md): two services at one database, one passes
requests on to Nova, the other does not and is InstanceHA's.  Its calls act on the ledger's hosts,
once each; of Nova's it sees and changes nothing.
"""

from __future__ import annotations

from typing import Any

import pytest
from keystoneauth1 import session, token_endpoint
from novaclient import client, exceptions

from aggregates.host import host_uuid
from tests.doubles.simulated_keystone import SimulatedKeystone
from tests.service.test_ha_controllers import INSTANCE_HA, failing
from tests.service.watched_world import Watched
from tests.stack import eventually

pytestmark = pytest.mark.slow

#: Nova's, and taken over; Nova's; the ledger's own.
TAKEN, NOVAS, OWN = "hv1", "hv3", "compute-1"


class InstanceHa:
    """Its calls, at one of the services."""

    def __init__(self, watched: Watched, keystone: SimulatedKeystone, number: int) -> None:
        token = keystone.token("ha", "admin", project="service")
        auth = token_endpoint.Token(watched.stack.url("/v2.1", number), token)
        self.nova: Any = client.Client(INSTANCE_HA, session=session.Session(auth=auth))

    def services(self) -> dict[str, Any]:
        return {each.host: each for each in self.nova.services.list(binary="nova-compute")}

    def servers(self, host: str) -> list[str]:
        opts = {"host": host, "all_tenants": 1}
        return [each.id for each in self.nova.servers.list(search_opts=opts)]

    def fence(self, service_id: str) -> None:
        self.nova.services.force_down(service_id, True)
        self.nova.services.disable_log_reason(service_id, "instanceha evacuation: now")

    def migration(self, server: str) -> str | None:
        how = {"instance_uuid": server, "migration_type": "evacuation"}
        return next((each.status for each in self.nova.migrations.list(**how)), None)


def start_both(watched: Watched, keystone: SimulatedKeystone) -> None:
    """The first passes on."""
    stack, login = watched.stack, keystone.user("ledger", "service", project="service")
    stack.auth = "keystone"
    auth = "".join(f"{name} = '{value}'\n" for name, value in login.items())
    alone = f"{stack.settings}[keystone.auth]\n{auth}[fencing]\ncontrollers = ['id-of-ha']\n"
    stack.settings = alone.replace("[observe]\n", f"[observe]\npass_on_to = '{watched.nova.url}'\n")
    stack.start_service(0)
    stack.settings = alone
    stack.start_service(1)


def take_over(watched: Watched, server: str) -> None:
    """The host, with its agent, which then dies."""
    nova, stack = watched.nova, watched.stack
    nova.disabled.add(TAKEN)
    asked = stack.http.post(stack.url(f"/v1/hosts/{TAKEN}/adopt"), json={"reason": "rack 3"})
    assert asked.json()["whole"], asked.text
    nova.down.add(TAKEN)
    for host in (OWN, TAKEN):
        stack.start_agent(host, 0, 1)
        stack.wait_for_host(host)
    watched.until("servers", server, "Instance.InstanceObserved")
    stack.agents[TAKEN].kill()


def test_instance_ha_evacuates_a_taken_over_host_by_the_service_that_does_not_pass_on(
    watched: Watched, keystone: SimulatedKeystone
) -> None:
    nova = watched.nova
    server, theirs = nova.boot("db", TAKEN), nova.boot("theirs", NOVAS)
    volume, other = watched.volume(), watched.volume()
    watched.on_the_host(server, nova.attach(server, volume), devices=())
    nova.attach(theirs, other)
    start_both(watched, keystone)
    for each in (volume, other):
        watched.until("volumes", each, "BlockDeviceMapping.DevicePlugged")
    take_over(watched, server.id)
    ha, passed_on = (InstanceHa(watched, keystone, number) for number in (1, 0))

    with pytest.raises(exceptions.NotAcceptable):  # of a Nova that answers one version alone
        passed_on.services()
    services = ha.services()
    assert set(services) == {OWN, TAKEN}, "none of Nova's alone"
    failed = services[TAKEN].id
    assert failed == str(host_uuid(TAKEN))
    ha.fence(failed)
    shown = ha.services()[TAKEN]
    assert (shown.state, shown.status, shown.forced_down) == ("down", "disabled", True)
    assert ha.servers(TAKEN) == [server.id]
    ha.nova.servers.lock(server.id, reason="instanceha-evacuation")
    response, _ = ha.nova.servers.evacuate(server=server.id)
    assert response.status_code == 200
    eventually(lambda: ha.migration(server.id) == "done", "it is evacuated")
    ha.nova.servers.unlock(server.id)
    assert ha.servers(OWN) == [server.id]
    ha.nova.services.force_down(failed, False)
    ha.nova.services.enable(failed)

    story = watched.history("servers", server.id)
    steps = [e["body"]["step"] for e in story if e["topic"] == "Operation.StepSucceeded"]
    assert {"create", "connect", "spawn", "complete", "switch", "delete"} <= set(steps)
    assert len(steps) == len(set(steps)), steps
    assert [e["topic"] for e in story].count("Instance.Placed") == 1
    assert watched.topics("hosts", TAKEN).count("Host.Fenced") == 1
    [held] = nova.cinder.attachments_of(volume)
    assert held.host == OWN
    assert {each.split(" ")[0] for each in nova.asked} == {"GET"}
    assert ha.servers(NOVAS) == [theirs.id]
    untouched(watched, ha, theirs.id, other)


def untouched(watched: Watched, ha: InstanceHa, server: str, volume: str) -> None:
    """What is Nova's alone: whoever asks for it here nevertheless."""
    before, asked = watched.head(), watched.nova.cinder.counts.copy()
    service = str(host_uuid(NOVAS))
    refused = [
        failing(ha.nova.services.force_down, service, True),
        failing(ha.nova.services.disable_log_reason, service, "instanceha evacuation: now"),
        failing(ha.nova.servers.lock, server),
        failing(ha.nova.servers.evacuate, server),
    ]
    assert [each.code for each in refused] == [404, 404, 409, 409], refused
    assert "Nova" in str(refused[3])
    [attachment] = watched.nova.cinder.attachments_of(volume)
    assert attachment.host == NOVAS
    changed = {name for name, n in watched.nova.cinder.counts.items() if n != asked.get(name, 0)}
    assert changed <= {"attachment_list", "attachment_show", "volume_list", "volume_show"}
    assert watched.head() == before
