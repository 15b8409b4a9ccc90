"""A guest that Nova's libvirt driver has made on iSCSI (two paths, also LUKS) and NVMe over TCP:
it goes over to the ledger while it writes, is worked on by the agent, and goes back; Nova goes on.

Nova works in the first virtual machine, without its API (nova_compute.py); what that would tell is
told here, by the simulated one.  Cinder is the real one.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import pytest

from ledger.cli.errors import ExitCode
from ledger.trial.cinder.model.model import CinderModel
from tests.benchmarks.servers import server as postgres
from tests.doubles.simulated_nova import Mapping, SimulatedNova, running_nova
from tests.doubles.simulated_nova import Server as NovasServer
from tests.lab.fabric.test_drift import findings, look
from tests.lab.fabric.world import (
    CINDER,
    ENV,
    HOSTS,
    OUTSIDE_S,
    PROJECT,
    SRC,
    Server,
    as_json,
    cinder,
    command,
    connected,
    guests,
    host_name,
    ledger,
    let_write,
    missing,
    on_each,
    script,
    sessions,
    settled,
    vm,
    volumes,
    wait_until,
    wait_written,
)
from tests.stack import Process
from tests.tokens import write_private

pytestmark = pytest.mark.lab
Make = Callable[[str], str]

HOST = host_name(1)
KINDS = ("lio", "nvmet", "lio-luks")
OBSERVE = """
[observe]
interval_s = 1.0
compute_endpoint = "{url}"
volume_endpoint = "{CINDER}"
[observe.auth]
auth_type = "admin_token"
endpoint = "{url}"
token = "observer:{PROJECT}"
"""
#: How what nobody uses is taken away: maps before the sessions of their paths.
RELEASE = {
    "multipath_map": "multipath -f {}",
    "iscsi_session": "iscsiadm -m node -T {} -u",
    "nvme_subsystem": "nvme disconnect -n {}",
}
#: What os-brick calls an encrypted volume's device.
LINKS = "ls /dev/disk/by-id | grep ^os-brick || true"


class NovaCompute:
    """Nova in the first virtual machine, as long as the `with`; what its API tells is `api`."""

    def __init__(self, api: SimulatedNova) -> None:
        self.api = api

    def __enter__(self) -> Self:
        program = "/opt/project/tests/lab/fabric/nova_compute.py"
        words = f"sed -i s/@KEY@/{ENV['LAB_FIXED_KEY']}/ /etc/nova/nova.conf;"
        words += f"exec /opt/nova/bin/python {program} 2>>/var/log/nova-compute.log"
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        start = [str(SRC / "vm.sh"), "run", words]
        self._popen = subprocess.Popen(start, env=ENV | {"FAB_VM": "1"}, text=True, **pipes)
        self.api.down.discard(HOST)
        self.api.broken.add("servers")  # until it tells what it has done by then
        return self

    def __exit__(self, *_: object) -> None:
        self._popen.communicate(timeout=60)
        self.api.down.add(HOST)

    def __call__(self, name: str, *words: str) -> Any:
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self._popen.stdin.write(json.dumps([name, *words]) + "\n")
        self._popen.stdin.flush()
        told = json.loads(self._popen.stdout.readline() or '{"error": "it has ended"}')
        assert "error" not in told, f"{name} {words}: {told}"
        return told["answer"]

    def show(self, server_id: str) -> str:
        """To whoever asks its API; the name of its guest."""
        told = self("shown", server_id)
        mappings = [
            Mapping(each["volume_id"], each["attachment_id"], each["device"], each["id"])
            for each in told["mappings"]
        ]
        shown = NovasServer(server_id, "of Nova", HOST, PROJECT, mappings=mappings)
        shown.root, shown.locked = "/dev/sda", True
        self.api.servers[server_id] = shown
        self.api.broken.clear()
        return str(told["guest"])


@pytest.fixture
def api() -> Iterator[SimulatedNova]:
    """What Nova tells, and a service with a database of its own that observes it."""
    usual = Path(ENV["LAB_DIR"], "etc/ledger.toml")
    on_each(lambda host: script("ledger.sh", "agent_off", on=host))
    on_each(lambda host: vm("mv /var/lib/agent /var/lib/agent-before", on=host))
    script("ledger.sh", "off")
    with postgres() as dsn, running_nova(CinderModel()) as api:
        text = re.sub("(?m)^database_url = .*$", f'database_url = "{dsn}"', usual.read_text())
        observe = OBSERVE.format(url=api.url, CINDER=CINDER, PROJECT=PROJECT)
        config = write_private(usual.with_name("beside.toml"), text + observe)
        log = Path(ENV["LAB_DIR"], "log/ledger-beside.log")
        process = Process(log, "ledger", "serve", "--config", str(config))
        try:
            yield api
        finally:
            on_each(lambda host: script("ledger.sh", "agent_off", on=host))
            process.stop()
            on_each(_clear)
            for each in cinder("GET", "/attachments")["attachments"]:
                cinder("DELETE", f"/attachments/{each['id']}")
            script("ledger.sh", "up")


def _clear(host: int) -> None:
    """Whatever a test that failed has left; and the records of agents from before it."""
    vm(
        "pkill -f [n]ova_compute.py; rm -rf /var/lib/nova;"
        "[ ! -d /var/lib/agent-before ] ||"
        " { rm -rf /var/lib/agent; mv /var/lib/agent-before /var/lib/agent; };"
        "for guest in $(virsh -q list --all --name | grep ^instance-); do"
        " virsh -q destroy $guest; virsh -q undefine $guest; done;"
        "for secret in $(virsh -q secret-list | cut -d' ' -f2); do"
        " virsh -q secret-undefine $secret; done; rm -f /dev/disk/by-id/os-brick*;"
        "multipath -F; iscsiadm -m node -u; nvme disconnect-all",
        on=host,
        check=False,
    )


class Adopted:
    """A server of Nova's with two volumes of each kind, which the ledger has taken over."""

    def __init__(self, nova: NovaCompute, new_volume: Make) -> None:
        self.nova, self.id = nova, str(uuid4())
        self.root = new_volume("lio")
        self.kept, self.others = ([new_volume(kind) for kind in KINDS] for _ in range(2))
        let_write(self.root)
        nova("boot", self.id, "of-nova", self.root)
        for name, volume in zip("bcdefg", self.kept + self.others, strict=True):
            nova("attach", self.id, volume, f"sd{name}")
        self.server = Server(nova.show(self.id), self.id)
        nova.api.disabled.add(HOST)
        seen = lambda: self.id in _known()  # noqa: E731
        wait_until(seen, "the ledger to see the server", OUTSIDE_S)
        command("host", "adopt", HOST, "--reason", "a test")

    def wait_agent(self) -> None:
        """By an agent, which is let in once Nova's compute service is down."""
        alive = lambda: ledger("GET", f"/v1/hosts/{HOST}")["alive"]  # noqa: E731
        wait_until(alive, "the agent to be let in", OUTSIDE_S)

    def attachments(self) -> dict[str, str]:
        found = ledger("GET", f"/v2.1/servers/{self.id}/os-volume_attachments")
        return {each["volumeId"]: each["attachment_id"] for each in found["volumeAttachments"]}

    def defined(self) -> str:
        return vm(f"virsh -q dumpxml {self.server.name}", on=self.server.host)

    def detach(self, volume: str) -> None:
        self.server.ask_detach(volume)
        settled()
        assert volumes()[volume] == "available"

    def attach(self, volume: str) -> None:
        self.server.ask_attach(volume)
        settled()
        assert volumes()[volume] == "in-use"

    def move(self, number: int) -> None:
        before = self.server.host
        host = {"host": host_name(number), "block_migration": "auto"}
        self.server.act("os-migrateLive", host)
        settled()
        assert self.server.host == number != before
        assert connected(before) == ""

    def assert_works(self, patterns: dict[str, int]) -> None:
        """It writes all the time, and reads what it wrote elsewhere; nobody sees a difference."""
        wait_written(self.root)
        for volume, pattern in patterns.items():
            assert self.server.reads(volume, pattern)
        look()
        found = findings("open")
        assert not found, as_json([ledger("GET", "/v1/drift/runs"), *found.values()])


def _known() -> set[str]:
    return {each["id"] for each in ledger("GET", "/v2.1/servers")["servers"]}


def hand_back(nova: NovaCompute, adopted: Adopted) -> None:
    """Nova gets what its database lacks, and then the host."""
    away = lambda: not ledger("GET", f"/v1/hosts/{HOST}")["alive"]  # noqa: E731
    wait_until(away, "the agent to be missed", OUTSIDE_S)
    nova.show(adopted.id)
    words = ["host", "hand-back", HOST, "-f", "json"]
    told = command(*words, "--dry-run", code=ExitCode.NOT_ALL)
    [of_server] = json.loads(told)["servers"]
    assert set(nova("execute", of_server["sql"])) == {1}
    nova.show(adopted.id)
    [of_server] = json.loads(command(*words, "--reason", "a test"))["servers"]
    assert of_server["state"] == "handed_back"


def test_a_guest_of_nova_is_adopted_worked_on_and_handed_back(
    api: SimulatedNova, new_volume: Make
) -> None:
    with NovaCompute(api) as nova:
        adopted = Adopted(nova, new_volume)
    server = adopted.server
    on_each(lambda host: script("ledger.sh", "agent", on=host))
    adopted.wait_agent()
    look()
    missed = {("connection_missing", each) for each in adopted.attachments().values()}
    assert set(findings("open")) == missed
    lio, nvmet, luks = adopted.kept
    patterns = {lio: 1, nvmet: 2, luks: 3}
    for volume, pattern in patterns.items():
        server.write(volume, pattern)

    for volume in adopted.others:  # by what Cinder and the kernel say alone
        adopted.detach(volume)
    assert_left(server, adopted.root, lio, nvmet, luks)
    before = adopted.defined()
    command("attachment", "refresh", "--host", HOST, "--wait")
    assert adopted.defined() == before
    adopted.assert_works(patterns)
    server.act("reboot", {"type": "HARD"})
    settled()
    assert server.sources() == server.sources(inactive=True)
    adopted.assert_works(patterns)
    for number in (2, 1):
        adopted.move(number)
        adopted.assert_works(patterns)
    adopted.detach(lio)
    adopted.attach(adopted.others[0])

    script("ledger.sh", "agent_off")
    with NovaCompute(api) as nova:
        hand_back(nova, adopted)
        nova("shelve", adopted.id)
        release_unused()
        assert connected(1) == ""
        nova("unshelve", adopted.id)
        wait_written(adopted.root)
        nova("reboot", adopted.id)
        wait_written(adopted.root)
        nova("detach", adopted.id, nvmet)
        nova("delete", adopted.id)
    assert connected(*HOSTS) == ""
    assert set(volumes().values()) == {"available"}
    assert missing(adopted.root) == ""
    assert guests(1) == []


def release_unused() -> None:
    """As an operator does, for Nova does not know how it is connected (docs/adopt.md)."""
    survey = "/opt/agent/bin/python -m host_agent survey --config /etc/attachment-ledger/agent.toml"
    storage = json.loads(vm(survey))["survey"]["storage"]  # it prints nothing else
    unused = [each for each in storage if not each["used"]]
    assert unused, "Nova has disconnected all by itself"
    for kind, release in RELEASE.items():
        for each in unused:
            if each["kind"] == kind:
                vm(release.format(each["name"]))
    vm("find /var/lib/agent -name '*.json' -delete")


def assert_left(server: Server, *kept: str) -> None:
    """The guest has these, and the host nothing else."""
    assert set(server.sources()) == set(kept)
    assert len(sessions()) == 2 * 3, "two paths each, of all but the one on NVMe"
    assert vm("multipath -ll | grep -c ^3") == "3"
    assert vm("ls -d /sys/class/nvme-subsystem/*/nvme*n1 | wc -l") == "1"
    assert len(vm(LINKS).split()) == 1
