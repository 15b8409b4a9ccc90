"""docs/operations.md, typed from top to bottom in bare machines: five of them, and two services.

Not tried here: Patroni, of which the page has no commands (tests/ha runs it).  Cinder and Keystone
are simulations on this machine.  The hypervisor's libvirt is Debian's, without a guest.
"""

from __future__ import annotations

import re
import resource
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.authority import Authority, Pair
from tests.doubles.running_cinder import running_cinder
from tests.doubles.simulated_keystone import PASSWORD, running_keystone
from tests.operations.machines import OUTSIDE, Machine, running
from tests.operations.page import DOCS, PAGE, Typist, blocks
from tests.stack import ROOT, eventually

pytestmark = pytest.mark.lab

DATABASE = Machine("database-1", 11)
SERVICES = (Machine("ledger-1", 21), Machine("ledger-2", 22))
MONITOR = Machine("monitor-1", 31)
HYPERVISOR = Machine("compute-1", 41)
MACHINES = (DATABASE, *SERVICES, MONITOR, HYPERVISOR)
PROXY = "ledger.example.org"
HOSTS = [(machine.address, machine.name) for machine in MACHINES]
HOSTS += [(machine.address, PROXY) for machine in SERVICES]
PASSWORDS = {"owner": "password-of-the-owner", "attachment-ledger": "password-of-the-service"}
#: What HAProxy opens with the `maxconn` of deploy/haproxy.cfg.
PROXY_FILES = 40_041
#: Until Prometheus has asked all of them, and its rules (each minute), a few times, in seconds.
SEEN_S = 300.0
#: How the manual of Keystone writes `[cinder.auth]` and a token.
[_WHOLE] = [
    each.text
    for each in blocks((DOCS / "keystone.md").read_text())
    if each.kind == "toml" and "[[tokens]]" in each.text
]
CINDER = "[cinder.auth]" + re.split(r"\[cinder.auth]|\[keystone]", _WHOLE)[1]
TOKEN = "[[tokens]]" + _WHOLE.split("[[tokens]]")[1]


@dataclass(frozen=True)
class Site:
    """What an operator has before the first command."""

    authority: Authority
    cinder_auth: str

    def give(self, machine: Machine, pair: Pair, name: str) -> None:
        """A certificate, its key and the authority, where it is typed."""
        shutil.copy(pair.certificate, machine.desk / f"{name}.pem")
        shutil.copy(pair.key, machine.desk / f"{name}.key")
        shutil.copy(self.authority.certificate, machine.desk / "ca.pem")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    hosts = "".join(f"{address} {name}\n" for address, name in HOSTS)
    with ExitStack() as stack:
        stack.enter_context(running(*MACHINES, hosts=hosts))
        cinder = stack.enter_context(running_cinder(host=OUTSIDE))
        keystone = stack.enter_context(running_keystone(host=OUTSIDE))
        keystone.catalog["volumev3"] = cinder.endpoint
        keystone.user("ledger", "service", "admin", project="service")
        for machine in MACHINES:
            for package in ROOT.glob("dist/*.deb"):
                shutil.copy(package, machine.desk)
        auth = CINDER.replace("https://keystone.example.org", keystone.url)
        yield Site(Authority(tmp_path / "ca"), auth.replace("...", PASSWORD.format("ledger")))


def test_the_page_from_top_to_bottom(site: Site) -> None:
    page = Typist(PASSWORDS)
    page.type("PostgreSQL", DATABASE)
    page.type("PostgreSQL", DATABASE)
    start_services(page, site)
    start_agent(page, site, give_tokens(page))
    watch(page, site)
    check(page)
    assert "All events behind position" in page.type("Each day", SERVICES[0])
    assert (SERVICES[0].desk / "checkpoint.json").stat().st_size
    assert page.is_done


def start_services(page: Typist, site: Site) -> None:
    settings = page.shown("The service")
    proxy = site.authority.pair(PROXY)
    for machine in SERVICES:
        own = settings.replace(SERVICES[0].address, machine.address)
        (machine.desk / "ledger.toml").write_text(own + site.cinder_auth)
        site.give(machine, site.authority.pair(machine.name, f"IP:{machine.address}"), "service")
        both = proxy.certificate.read_bytes() + proxy.key.read_bytes()
        (machine.desk / "proxy.pem").write_bytes(both)
    page.type("The service", *SERVICES)
    for machine in SERVICES:
        allow_proxy(machine)
    assert 'TO "attachment-ledger"' in page.type("The service", SERVICES[0])
    shown = page.type("The service", *SERVICES)
    assert all(machine.address in shown for machine in SERVICES)
    secrets = (*PASSWORDS.values(), PASSWORD.format("ledger"))
    assert [secret for secret in secrets if secret in shown] == []
    page.type("The service", *SERVICES)


def allow_proxy(machine: Machine) -> None:
    """Where this machine may not open as many files as the proxy wants, it gets fewer lines."""
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < PROXY_FILES:
        packaged = "/usr/share/doc/attachment-ledger/haproxy.cfg"
        machine.type(f"grep -q 'maxconn 20000' {packaged}")
        machine.type(f"sed -i 's/maxconn 20000/maxconn 4000/' {packaged}")


def give_tokens(page: Typist) -> str:
    """Of the operator and of the agent, whose token is returned."""
    first = SERVICES[0]
    digests = [page.type("Tokens", first).strip() for _ in ("operator", "agent")]
    operators = re.sub("host = .*\n", "", TOKEN).replace("compute-1", "operator")
    operators = operators.replace('"agent"', '"admin"')
    rows = "".join(
        row.replace("...", digest) for row, digest in zip((operators, TOKEN), digests, strict=True)
    )
    for machine in SERVICES:
        with (machine.desk / "ledger.toml").open("a") as file:
            file.write(rows)
    page.type("Tokens", *SERVICES)
    return (first.desk / "token").read_text()


def start_agent(page: Typist, site: Site, token: str) -> None:
    (HYPERVISOR.desk / "agent.toml").write_text(page.shown("Agents") + site.cinder_auth)
    (HYPERVISOR.desk / "token").write_text(token)
    shutil.copy(site.authority.certificate, HYPERVISOR.desk / "ca.pem")
    page.type("Agents", HYPERVISOR)


def watch(page: Typist, site: Site) -> None:
    (MONITOR.desk / "prometheus.yml").write_text(page.shown("Watch it"))
    shutil.copy(site.authority.certificate, MONITOR.desk / "ca.pem")
    page.type("Watch it", MONITOR)
    services = {f"{machine.address}:8790": 1.0 for machine in SERVICES}
    agent = {f"{HYPERVISOR.address}:9790": 1.0}
    eventually(
        lambda: value('up{job=~"attachment-ledger.*"}') == services | agent, "all are up", SEEN_S
    )
    eventually(lambda: value("ledger_agent_registered") == agent, "the agent registers", SEEN_S)
    assert set(value("ledger_ready{check='database'}").values()) == {1.0}
    told = re.findall(r"^\| \[(\w+)]", (DOCS / "alerts/README.md").read_text(), re.MULTILINE)
    groups = asked("rules")["groups"]
    assert {rule["name"] for group in groups for rule in group["rules"]} == set(told)
    assert MONITOR.type("systemctl is-active attachment-ledger || true").strip() == "inactive"


def check(page: Typist) -> None:
    """With both processes, and with the second alone."""
    [typed] = [each for each in blocks(PAGE) if each.section == "Check it"]
    first = page.type("Check it", SERVICES[0])
    assert re.search(r"compute-1 .*\bup\b", first), first
    [stop] = re.findall(r"`(systemctl stop [\w-]+)`", PAGE)
    SERVICES[0].type(stop)
    address = f"{SERVICES[0].address}:8790"
    eventually(partial(is_down, address), "Prometheus sees that it is stopped", SEEN_S)
    again = page.type_block(typed, SERVICES[0])
    assert re.search(r"compute-1 .*\bup\b", again), again
    SERVICES[0].type("systemctl start attachment-ledger")


def is_down(instance: str) -> bool:
    begun = [each["labels"] for each in asked("alerts")["alerts"]]
    told = [each["instance"] for each in begun if each["alertname"] == "LedgerDown"]
    return value("up").get(instance) == 0.0 and told == [instance]


def value(query: str) -> dict[str, float]:
    """By instance; nothing while it starts."""
    with suppress(requests.RequestException):
        rows = asked("query", query=query)["result"]
        return {row["metric"]["instance"]: float(row["value"][1]) for row in rows}
    return {}


def asked(what: str, **query: str) -> Any:
    """Prometheus's answer."""
    url = f"http://{MONITOR.address}:9090/api/v1/{what}"
    return requests.get(url, params=query, timeout=10).json()["data"]
