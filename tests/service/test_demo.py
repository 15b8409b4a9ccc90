"""The demo, run as users run it: the whole system in its own processes, with a real kill."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ledger.cli.client import Client
from ledger.trial.cloud import free_port
from ledger.trial.demo import Check, Summary

PROGRAM = Path(sys.executable).with_name("attachment-ledger")
DEADLINE_S = 90.0
POLL_S = 0.05

CHECKS = [
    "agent_killed_in_the_middle",
    "attach_completed",
    "cinder_has_one_attachment_in_use",
    "guest_has_the_disk_once",
    "host_is_connected_once",
    "cinder_refuses_a_users_delete",
    "detach_completed",
    "cinder_has_it_available",
    "guest_has_no_disk",
    "host_is_not_connected",
    "nothing_is_left_open",
    "log_has_each_fact_once",
    "past_is_known",
    "no_secret_is_written",
    "drift_is_found",
    "repair_completed",
    "drift_is_repaired",
]


@pytest.fixture
def home() -> Iterator[Path]:
    """Where the demo's temporary directory is made; PostgreSQL's account must pass."""
    path = Path(tempfile.mkdtemp(prefix="demo-test-"))
    path.chmod(0o711)
    yield path
    left = processes_of(path)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    shutil.rmtree(path, ignore_errors=True)
    assert not left, "processes were left over"


def processes_of(home: Path) -> list[int]:
    """Who still works for a demo below this directory, by the arguments they were given."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (process / "cmdline").read_bytes()
        except OSError:
            continue  # it has just ended
        if os.fsencode(home) in arguments and int(process.name) != os.getpid():
            found.append(int(process.name))
    return found


def until(what: str, look: Callable[[], Any]) -> Any:
    end = time.monotonic() + DEADLINE_S
    while not (found := look()):
        assert time.monotonic() < end, f"not in time: {what}"
        time.sleep(POLL_S)
    return found


class Demo:
    """A demo that runs, and what it has printed so far."""

    def __init__(self, home: Path, *arguments: str) -> None:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("LEDGER_")}
        self.environ = {**kept, "TMPDIR": str(home)}
        self._home = home
        self._out = home / "printed"
        with self._out.open("wb") as out, (home / "errors").open("wb") as errors:
            self.process = subprocess.Popen(
                [PROGRAM, "demo", *arguments], stdout=out, stderr=errors, env=self.environ
            )

    @property
    def printed(self) -> str:
        return self._out.read_text()

    @property
    def errors(self) -> str:
        return (self._home / "errors").read_text()

    def wait_for(self, text: str) -> None:
        def seen() -> bool:
            assert self.process.poll() is None, f"the demo has ended: {self.errors}"
            return text in self.printed

        until(f"the demo prints {text!r}", seen)

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(DEADLINE_S)


@pytest.mark.slow
def test_nothing_is_lost_when_the_agent_is_killed_in_the_middle(home: Path) -> None:
    demo = Demo(home, "--once", "-f", "json")
    code = demo.process.wait(DEADLINE_S)
    summary = json.loads(demo.printed)  # nothing else is on standard output
    assert [c for c in summary["checks"] if not c["held"]] == []
    assert [c["name"] for c in summary["checks"]] == CHECKS
    assert (code, summary["ok"], summary["error"]) == (0, True, None)
    assert "Attach requested" in demo.errors
    assert "A second look sees the same difference" in demo.errors
    assert processes_of(home) == []
    assert list(home.glob("attachment-ledger-demo-*")) == []


@pytest.mark.slow
def test_what_the_demo_offers_to_copy_works_until_it_is_told_to_stop(home: Path) -> None:
    demo = Demo(home)
    try:
        demo.wait_for("Kill what you like")
        shell = Shell(demo)
        history = shell.run("history volume")
        assert "Operation completed" in history
        assert "host-1" in shell.run("attachment list --all")
        check_the_past(shell)
        move_servers(shell)
        park_a_detach(demo, shell)
        restart_a_killed_agent(demo)
    finally:
        code = demo.end(signal.SIGTERM)
    assert code == 0
    assert processes_of(home) == []
    assert list(home.glob("attachment-ledger-demo-*")) == []


class Shell:
    """Runs lines that the demo printed, with what it said to export."""

    def __init__(self, demo: Demo) -> None:
        self._lines = demo.printed.splitlines()
        exported = re.findall(r"(LEDGER_\w+|OS_CLIENT_CONFIG_FILE)=(\S+)", demo.printed)
        self.environ = {**demo.environ, **dict(exported)}

    def line(self, part: str) -> str:
        """The printed command with this in it, in one piece."""
        text = "\n".join(self._lines).replace("\\\n", " ")
        return next(line.strip() for line in text.splitlines() if part in line)

    def run(self, part: str, code: int = 0, **replaced: str) -> str:
        command = self.line(part)
        for word, value in replaced.items():
            command = command.replace(word, value)
        done = subprocess.run(
            ["bash", "-c", command], capture_output=True, text=True, env=self.environ, check=False
        )
        assert done.returncode == code, f"{command}\n{done.stderr}"
        return done.stdout

    def ask(self, *words: str) -> Any:
        command = [str(PROGRAM), *words, "-f", "json"]
        done = subprocess.run(command, capture_output=True, env=self.environ, check=True)
        return json.loads(done.stdout)

    @property
    def cloud(self) -> dict[str, Any]:
        text = Path(self.environ["OS_CLIENT_CONFIG_FILE"]).read_text()
        cloud: dict[str, Any] = json.loads(text)["clouds"]["demo"]
        return cloud


def check_the_past(shell: Shell) -> None:
    """What an attachment that is gone was, a moment after it was complete."""
    ask = shell.ask
    found = ask("attachment", "list", "--all")
    [attachment] = [each for each in found if each["Host"]]  # the drift was on none
    assert attachment["State"] == "deleted"
    events = ask("history", "attachment", attachment["ID"])
    [completed] = [e["Time"] for e in events if e["Event"] == "Attachment.Completed"]
    at = (datetime.fromisoformat(completed) + timedelta(milliseconds=1)).isoformat()
    then = ask("attachment", "show", attachment["ID"], "--at", at)
    assert (then["state"], then["host"]) == ("attached", "host-1")
    past = ask("history", "volume", attachment["Volume"], "--at", at)
    topics = {event["Event"] for event in past}
    assert "Attachment.Completed" in topics
    assert "Attachment.Disconnected" not in topics


def move_servers(shell: Shell) -> None:
    """The cloud has servers without disks of their host's, and a volume to boot from."""
    assert "completed" in shell.run("server create mail-1")
    assert "destination" in shell.run("--live-migration")
    assert "shelve" in shell.run("server shelve")
    screen = shell.run(" top", 0, **{" top": " top --once"})
    assert "0 parked, 0 running" in screen
    lost = shell.ask("server", "show", "mail-1")["host"]
    assert "evacuate" in shell.run("server evacuate")
    evacuated = shell.ask("server", "show", "mail-1")
    assert evacuated["status"] == "ACTIVE"
    assert evacuated["host"] != lost


def park_a_detach(demo: Demo, shell: Shell) -> None:
    """The incident as printed; the clients' two commands through the API they use."""
    cloud = shell.cloud
    compute = Client(cloud["compute_endpoint_override"], cloud["auth"]["token"])
    block_storage = Client(cloud["block_storage_endpoint_override"], cloud["auth"]["token"])
    servers = {each["name"]: each["id"] for each in compute.get("/servers")["servers"]}
    volumes = {each["name"]: each["id"] for each in block_storage.get("/volumes")["volumes"]}
    path = f"/servers/{servers['db-1']}/os-volume_attachments"
    compute.post(path, {"volumeAttachment": {"volumeId": volumes["data-2"]}})
    ledger = Client(shell.environ["LEDGER_URL"], shell.environ["LEDGER_TOKEN"])

    def parked() -> Any:
        return ledger.get("/v1/operations", state="parked")["operations"]

    def quiet() -> bool:
        return not ledger.get("/v1/operations", state="running")["operations"]

    until("the attach ends", quiet)
    shell.run("attachment_delete")
    compute.send("DELETE", f"{path}/{volumes['data-2']}")
    [operation] = until("the detach parks", parked)
    operation_id = operation["operation_id"]
    assert operation_id in shell.run("operation list --parked")
    assert "-> delete" in shell.run("operation show", OPERATION=operation_id)
    shell.run("echo '[]'")
    assert "completed" in shell.run("operation retry", OPERATION=operation_id)
    assert compute.get(path)["volumeAttachments"] == []
    assert (
        "Retry requested: Cinder is mended"
        in subprocess.run(
            [PROGRAM, "history", "operation", operation_id],
            capture_output=True,
            text=True,
            env=shell.environ,
            check=True,
        ).stdout
    )


def restart_a_killed_agent(demo: Demo) -> None:
    found = re.search(r"^ +(\d+)  host-2 ", demo.printed, re.MULTILINE)
    assert found is not None
    os.kill(int(found.group(1)), signal.SIGKILL)
    demo.wait_for("host-2 runs again")


@pytest.mark.slow
def test_an_interrupted_demo_has_not_held_and_leaves_nothing(home: Path) -> None:
    demo = Demo(home, "--once", "-f", "json")
    until("the service is started", lambda: list(home.glob("*/ledger.log")))
    assert demo.end(signal.SIGINT) == 1
    assert demo.printed == ""
    assert "stopped before its end" in demo.errors
    assert processes_of(home) == []
    assert list(home.glob("attachment-ledger-demo-*")) == []


def test_a_directory_that_is_not_empty_is_refused(home: Path) -> None:
    (home / "data").write_text("somebody's")
    demo = Demo(home, "--once", "--state-dir", str(home))
    assert demo.process.wait(DEADLINE_S) == 2
    assert "is not empty" in demo.errors


def test_json_is_the_summary_of_the_whole_only(home: Path) -> None:
    demo = Demo(home, "-f", "json")
    assert demo.process.wait(DEADLINE_S) == 2
    assert "--once" in demo.errors


@pytest.mark.parametrize(
    "summary",
    [
        Summary(),
        Summary(checks=[Check("a", True, 1), Check("b", False, 0)]),
        Summary(checks=[Check("a", True, 1)], error="the ledger ended with 1"),
    ],
    ids=["nothing checked", "one did not hold", "did not come to its end"],
)
def test_the_summary_is_not_ok_unless_everything_held(summary: Summary) -> None:
    assert not summary.ok
    assert summary.to_json()["ok"] is False


def test_a_port_is_kept_for_the_server_that_is_told_of_it() -> None:
    with ExitStack() as held:
        where = ("127.0.0.1", free_port(held))
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(where)
        with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
            stranger.bind(where)
        for _ in range(2):
            with socket.create_server(where):
                socket.create_connection(where).close()
    with socket.create_server(where):
        pass
