"""One server through every flow, with all processes, by both kinds of Cinder's calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ledger.trial.cinder.views import MAX_VERSION, Microversion
from tests.service.test_end_to_end import kept_of
from tests.stack import DEADLINE_S, Stack, eventually, running_stack

OLD_CALLS: Microversion = (3, 43)
HOSTS = ("compute-1", "compute-2")
ACTIONS: tuple[tuple[str, Any], ...] = (
    ("os-migrateLive", {"host": "compute-2", "block_migration": False}),
    ("migrate", None),
    ("confirmResize", None),
    ("resize", {"flavorRef": "c2.m1024"}),
    ("revertResize", None),
    ("shelve", None),
    ("unshelve", None),
    ("os-stop", None),
    ("os-start", None),
    ("reboot", {"type": "HARD"}),
    ("pause", None),
    ("unpause", None),
    ("rebuild", {"imageRef": ""}),
)


@pytest.mark.parametrize(
    ("driver", "cinder"),
    [("iscsi", MAX_VERSION), ("iscsi", OLD_CALLS), ("rbd", MAX_VERSION), ("rbd", OLD_CALLS)],
    ids=str,
)
def test_a_whole_life_keeps_no_secret_and_leaves_nothing(
    tmp_path: Path, database_url: str, driver: str, cinder: Microversion
) -> None:
    with running_stack(tmp_path, database_url) as cloud:
        cloud.start_cinder(cinder)
        cloud.start_service()
        for host in HOSTS:
            cloud.start_agent(host)
            cloud.wait_for_host(host)
        volumes = [cloud.add_volume(bootable=True, driver=driver), cloud.add_volume(driver=driver)]
        server = cloud.build({"volume_id": volumes[0], "boot_index": 0}, {"volume_id": volumes[1]})
        for name, body in ACTIONS:
            cloud.completed(cloud.act(server, name, body))
        refresh = cloud.url(f"/v1/servers/{server}/refresh")
        cloud.completed(cloud.http.post(refresh, timeout=DEADLINE_S))
        evacuated(cloud, server)
        cloud.servers[server] = cloud.server(server)["OS-EXT-SRV-ATTR:host"]
        assert set(cloud.disks(server)) == set(volumes)

        secrets, kept = set(cloud.cinder.model.secrets), kept_of(cloud)
        assert secrets, "the simulation planted some"
        assert all(volume in kept for volume in volumes), "we look at the right places"
        assert [secret for secret in secrets if secret in kept] == []
        cloud.completed(cloud.http.delete(cloud.url(f"/v2.1/servers/{server}"), timeout=DEADLINE_S))
        assert [cloud.cinder.model.volume(volume).status for volume in volumes] == ["available"] * 2
        assert cloud.cinder.model.attachments == {}
        for host in HOSTS:
            assert not any(cloud.host(host).read().values()), "guests, connections, secrets, files"


def evacuated(cloud: Stack, server: str) -> None:
    """Its host dies, is fenced, and comes back when the server is gone."""
    dead = cloud.server(server)["OS-EXT-SRV-ATTR:host"]
    cloud.agents[dead].kill()
    why: Any = {"reason": "no heartbeat", "evidence": "powered off", "force": True}
    fence = cloud.url(f"/v1/hosts/{dead}/fence")
    assert cloud.http.post(fence, json=why, timeout=DEADLINE_S).ok
    cloud.completed(cloud.act(server, "evacuate", {}))
    unfence = cloud.url(f"/v1/hosts/{dead}/unfence")
    assert cloud.http.post(unfence, json={"reason": "repaired"}, timeout=DEADLINE_S).ok
    cloud.start_agent(dead)
    eventually(
        lambda: not cloud.get(f"/v1/hosts/{dead}").json()["suspect"], f"{dead} lets go of {server}"
    )
