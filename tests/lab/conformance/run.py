"""Run the tests of tempest and openstacksdk, and write what became of each, a JSON object a line.

`python run.py RESULTS [PART ...]`: those whose id has one of the parts in it, or all.  Run by the
conformance tests' own environment, which has nothing of this project, with the lab's settings.

Nothing of a test is changed.  Three things are, of the servers that both programs make before their
tests begin, because this service knows none with a disk of an image on the host:

- They boot from a volume that is made of the image: tempest has an argument for it.  Where tests
  count volumes and expect none (`ATTACHING`, openstacksdk), they boot from a kernel of the host:
  the administrator makes them in the test's project by POST /v1/servers.
- They have no network: tempest's classes ask for one, and use it only to log in to guests
  (`run_validation`, which is off).
- tempest's have no `adminPass`, which it uses for nothing else either.

A class is a task, with a process of its own; so many are run at the same time.
"""

from __future__ import annotations

import collections
import functools
import json
import multiprocessing
import os
import pkgutil
import sys
import time
import unittest
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

#: Packages and modules whose tests are run.
SUITES = (
    "tempest.api.compute.volumes",
    "tempest.api.compute.servers",
    "tempest.api.compute.test_versions",
    "openstack.tests.functional.compute.v2.test_server",
    "openstack.tests.functional.compute.v2.test_volume_attachment",
)
#: Of these, the tests whose servers have no volumes.
ATTACHING = (
    "tempest.api.compute.volumes.",
    "tempest.api.compute.servers.test_server_actions.ServerActionsTestOtherB",
)
#: Beside a Nova (nova/test_tempest.py), of which nothing is changed but that there is no network.
BESIDE_NOVA = os.environ.get("LAB_TIER") == "nova"
NOVA_SUITES = (
    "tempest.api.compute.volumes",
    "tempest.api.compute.admin.test_volumes_negative",
    "tempest.api.volume.test_volumes_actions",
)
AT_ONCE = 3

Class = tuple[str, tuple[str, ...]]  # module.Class, and ids of its tests


# ------------------------------------------------------------------------------ which


def modules(name: str) -> Iterator[str]:
    path = getattr(import_module(name), "__path__", None)
    if path is None:
        yield name
        return
    for found in pkgutil.walk_packages(path, f"{name}."):
        if not found.ispkg:
            yield found.name


def tests(module: str) -> Iterator[unittest.TestCase]:
    suites = [unittest.defaultTestLoader.loadTestsFromModule(import_module(module))]
    while suites:
        for item in suites.pop():
            if isinstance(item, unittest.TestSuite):
                suites.append(item)
            else:
                yield item


def name_of(test: unittest.TestCase) -> str:
    """Without tempest's tags, which follow in brackets."""
    return test.id().partition("[")[0]


def wanted(parts: list[str]) -> list[Class]:
    """The classes with tests to run, those with most first: what begins last is waited for."""
    found: dict[str, list[str]] = collections.defaultdict(list)
    for suite in NOVA_SUITES if BESIDE_NOVA else SUITES:
        for module in modules(suite):
            for test in tests(module):
                name = name_of(test)
                if not parts or any(part in name for part in parts):
                    found[name.rpartition(".")[0]].append(name)
    most = sorted(found.items(), key=lambda item: -len(item[1]))
    return [(name, tuple(sorted(names))) for name, names in most]


# ------------------------------------------------------------------------------ servers


def of_a_kernel(project_id: str, name: str) -> str:
    """The id of a new server of the project that has no volumes."""
    ksa = import_module("keystoneauth1.identity")
    admin = ksa.V3Password(
        os.environ["LEDGER_LAB_KEYSTONE"],
        username="admin",
        password=os.environ["LEDGER_LAB_KEYSTONE_PASSWORD"],
        user_domain_id="default",
        project_id=project_id,
    )
    session = import_module("keystoneauth1.session").Session(auth=admin)
    wanted = {
        "name": name,
        "memory_mb": int(os.environ["OPENSTACKSDK_FLAVOR"].partition(".m")[2]),
        "kernel": os.environ["LEDGER_LAB_GUEST"] + "/vmlinux",
        "initrd": os.environ["LEDGER_LAB_GUEST"] + "/initramfs.cpio",
        "cmdline": "console=ttyS0 quiet nokaslr mitigations=off no_timer_check panic=-1",
    }
    made = session.post(os.environ["LAB_LEDGER_URL"] + "/v1/servers", json=wanted)
    return str(made.json()["server_id"])


def tempest_server(create: Callable[..., Any], *, volumes: bool) -> Callable[..., Any]:
    """tempest.common.compute.create_test_server; image_id '' is one that says its disks itself."""
    client = import_module("tempest.lib.common.rest_client")
    waiters = import_module("tempest.common.waiters")

    @functools.wraps(create)
    def created(clients: Any, *args: Any, **asked: Any) -> Any:
        asked.pop("adminPass", None)
        of_disks = asked.get("image_id") == "" or "block_device_mapping_v2" in asked
        if not of_disks and not volumes:
            made = of_a_kernel(clients.credentials.project_id, asked["name"])
            waiters.wait_for_server_status(clients.servers_client, made, "ACTIVE")
            shown = clients.servers_client.show_server(made)
            server = client.ResponseBody(shown.response, shown["server"])
            return server, [server]
        if not of_disks:
            asked["volume_backed"] = True
        return create(clients, *args, **asked)

    return created


def sdk_server(create: Callable[..., Any]) -> Callable[..., Any]:
    """openstack.compute.v2._proxy.Proxy.create_server; who says its disks gets those."""

    @functools.wraps(create)
    def created(self: Any, **asked: Any) -> Any:
        if "block_device_mapping" in asked:
            return create(self, **asked)
        return self.get_server(of_a_kernel(self.get_project_id(), asked["name"]))

    return created


def adapt(*, volumes: bool) -> None:
    """How servers are made from now on, in this process."""
    compute: Any = import_module("tempest.common.compute")
    compute.create_test_server = tempest_server(compute.create_test_server, volumes=volumes)
    proxy = import_module("openstack.compute.v2._proxy").Proxy
    proxy.create_server = sdk_server(proxy.create_server)


# ------------------------------------------------------------------------------ run


class Results(unittest.TestResult):
    """What became of each test; of a class that could not begin, of all of its tests.

    What is in the way of its end is a test of its own, `tearDownClass`.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__()
        self.names, self.found = names, dict[str, tuple[str, str]]()
        self.began, self.took = 0.0, dict[str, int]()

    def _of(self, test: Any, outcome: str, text: str) -> None:
        name = name_of(test)
        if name.startswith("tearDownClass"):
            self.found[f"{self.names[0].rpartition('.')[0]}.tearDownClass"] = (outcome, text)
            return
        for each in [name] if name in self.names else self.names:
            if self.found.get(each, ("passes",))[0] != "fails":
                self.found[each] = (outcome, text)

    def startTest(self, test: Any) -> None:  # noqa: N802  # unittest's name, as those below
        self.began = time.monotonic()
        super().startTest(test)

    def stopTest(self, test: Any) -> None:  # noqa: N802
        self.took[name_of(test)] = round(time.monotonic() - self.began)
        super().stopTest(test)

    def addSuccess(self, test: Any) -> None:  # noqa: N802
        self._of(test, "passes", "")

    def addSkip(self, test: Any, reason: str) -> None:  # noqa: N802
        self._of(test, "skipped", reason)

    def addFailure(self, test: Any, err: Any) -> None:  # noqa: N802
        self._of(test, "fails", self._exc_info_to_string(err, test))  # type: ignore[attr-defined]

    addError = addFailure  # noqa: N815


def run(task: Class) -> list[dict[str, Any]]:
    """In a process of its own."""
    name, names = task
    module = name.rpartition(".")[0]
    if not BESIDE_NOVA:
        adapt(volumes=not name.startswith(ATTACHING))
    suite = unittest.TestSuite(test for test in tests(module) if name_of(test) in names)
    for test in suite:
        if hasattr(test, "create_default_network"):
            type(test).create_default_network = False
    results, began = Results(names), time.monotonic()
    suite.run(results)
    took = f"{time.monotonic() - began:.0f} s"
    gone = ("fails", "it did not say what became of it")
    found = dict.fromkeys(names, gone) | results.found
    counted = collections.Counter(outcome for outcome, _ in found.values())
    print(f"{name}: {dict(counted)}, {took}", flush=True)  # noqa: T201
    return [
        {"test": each, "outcome": outcome, "seconds": results.took.get(each, 0), "text": text}
        for each, (outcome, text) in found.items()
    ]


def main() -> None:
    results, *parts = sys.argv[1:]
    found: list[dict[str, Any]] = []
    with multiprocessing.get_context("fork").Pool(AT_ONCE, maxtasksperchild=1) as pool:
        for some in pool.imap_unordered(run, wanted(parts), chunksize=1):
            found += some
            lines = [json.dumps(each) + "\n" for each in found]
            Path(results).write_text("".join(lines))
    sys.stdout.flush()
    os._exit(0)  # what others' threads still do is nobody's business any more


if __name__ == "__main__":
    main()
