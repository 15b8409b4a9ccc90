"""The real agent process: killed at every step before and after its effect, and started again."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.request import urlopen

import pytest
import structlog

from host_agent import __main__ as agent
from host_agent.__main__ import main
from host_agent.shared.contract.lane import Lane
from host_agent.shared.contract.messages import SERVICE_VERSION, Command, PowerState
from host_agent.shared.contract.wire import plain
from host_agent.simulated.host_state import HostState
from ledger.trial.cloud import free_port
from tests.agent.bench import ATTACH, DETACH, PASSPHRASE, WAIT_S, command, eventually
from tests.agent.fake_ledger import FakeLedger
from tests.authority import Authority
from tests.doubles.direct_cinder import DirectCinder
from tests.doubles.host_checks import broken_invariants, connected_paths, plugged
from tests.doubles.running_cinder import RunningCinder, running_cinder
from tests.doubles.supervisor import supervisor
from tests.tokens import write_private

SERVER = "11111111-1111-1111-1111-111111111111"
ROOT = Path(__file__).parents[2]


class Host:
    """One simulated hypervisor on disk, and agent processes over it."""

    def __init__(self, path: Path, ledger: FakeLedger, cinder: RunningCinder) -> None:
        self.path, self.ledger, self.cinder = path, ledger, cinder
        self.state = path / "host.json"
        self.state.write_text(json.dumps({"define": [{"server_id": SERVER, "name": "vm-1"}]}))
        self.log = path / "agent.log"
        write_private(
            path / "agent.toml",
            f"""
            [agent]
            host = "compute-1"
            lock_path = "{path / "locks"}"
            [ledger]
            url = "{ledger.url}"
            token = "{FakeLedger.TOKEN}"
            wait_s = 0.5
            [cinder]
            endpoint = "{cinder.endpoint}"
            [keys]
            fixed_key = "{PASSPHRASE}"
            """,
        )

    def lane(self, **over: Any) -> Lane:
        volume = self.cinder.model.add_volume(driver="iscsi", encrypted=True)
        view = DirectCinder(self.cinder.model).attachment_create(volume.id, SERVER)
        return Lane(
            server_id=SERVER,
            volume_id=volume.id,
            bdm_id="bdm-1",
            attachment_id=view.id,
            device_name="vdb",
            **over,
        )

    def start(
        self,
        *arguments: str,
        faults: list[dict[str, Any]] | None = None,
        environ: Mapping[str, str] = MappingProxyType({}),
    ) -> Any:
        if faults is not None:
            (self.path / "faults.json").write_text(json.dumps(faults))
        with self.log.open("ab") as out:
            return subprocess.Popen(
                [
                    *(sys.executable, "-m", "host_agent", "run"),
                    *("--config", str(self.path / "agent.toml"), "--simulated", str(self.state)),
                    *("--faults", str(self.path / "faults.json"), *arguments),
                ],
                cwd=ROOT,
                env={**os.environ, "PYTHONWARNINGS": "default", **environ},
                stdout=out,
                stderr=out,
            )

    @contextmanager
    def agent(self, **kwargs: Any) -> Iterator[Any]:
        process = self.start(**kwargs)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
                assert process.wait(WAIT_S) == 0, self.log.read_text()

    def finish(self, given: Command) -> None:
        eventually(lambda: self.ledger.is_done(given), self.log)


@pytest.fixture
def host(tmp_path: Path, fake_ledger: FakeLedger) -> Iterator[Host]:
    with running_cinder() as cinder:
        yield Host(tmp_path, fake_ledger, cinder)


KILLS = (
    ("attach", "brick.connect", "crash_after"),
    ("attach", "brick.connector", "crash"),
    ("attach", "guests.keep_secret", "crash_after"),
    ("attach", "brick.connect", "crash"),
    ("attach", "guests.plug", "crash"),
    ("attach", "guests.plug", "crash_after"),
    ("detach", "guests.unplug", "crash_after"),
    ("detach", "guests.unplug", "crash"),
    ("detach", "brick.disconnect", "crash"),
    ("detach", "brick.disconnect", "crash_after"),
    ("detach", "guests.drop_secret", "crash_after"),
)


@pytest.mark.slow
@pytest.mark.parametrize(("flow", "call", "deed"), KILLS)
def test_killed_agent_takes_up_where_it_was(host: Host, flow: str, call: str, deed: str) -> None:
    lane = host.lane()
    attach = host.ledger.give(command(lane))
    if flow == "detach":
        with host.agent(faults=[]):
            host.finish(attach)
    given = host.ledger.give(command(lane, DETACH)) if flow == "detach" else attach

    with host.agent(faults=[{"call": call, "do": deed}]) as process:
        assert process.wait(WAIT_S) == -signal.SIGKILL, host.log.read_text()
    assert not host.ledger.is_done(given)
    with host.agent():
        host.finish(given)

    steps = ATTACH if flow == "attach" else DETACH
    assert host.ledger.steps_of(given) == [verb.value for verb in steps]
    assert all(report.results[-1].error is None for report in host.ledger.reports)
    store = HostState(host.state)
    assert broken_invariants(store) == []
    assert plugged(store)[SERVER] == ({lane.volume_id: ("vdb", "vdb")} if flow == "attach" else {})
    row = host.cinder.model.attachments.get(lane.attachment_id or "")
    assert (row.status if row else None) == ("attached" if flow == "attach" else None)


def test_no_planted_secret_is_in_logs_reports_state_or_locks(host: Host) -> None:
    lane = host.lane()
    given = host.ledger.give(command(lane))
    chatty = [{"call": "brick.connect", "do": "delay", "seconds": 0.01}]
    process = host.start("--log-level", "debug", faults=chatty)
    try:
        host.finish(given)
        host.finish(host.ledger.give(command(lane, DETACH)))
    finally:
        process.terminate()
        assert process.wait(WAIT_S) == 0
    secrets = list(host.cinder.model.secrets)
    assert secrets
    written = [path for path in host.path.rglob("*") if path.is_file()]
    texts = [path.read_text() for path in written if path.name != "agent.toml"]
    texts.append(str([plain(report) for report in host.ledger.reports]))
    assert any("debug" in text for text in texts)
    secrets += [PASSPHRASE, FakeLedger.TOKEN]
    assert not [secret for secret in secrets for text in texts if secret in text]


def test_log_lines_are_json_and_name_operation_server_volume_and_request(host: Host) -> None:
    lane = host.lane()
    given = host.ledger.give(command(lane))
    with host.agent(faults=[]):
        host.finish(given)
    lines = [json.loads(line) for line in host.log.read_text().splitlines()]
    step = next(
        line for line in lines if (line["event"], line.get("step")) == ("step_done", "disk_plug")
    )
    assert step["operation"] == given.operation_id
    assert (step["server"], step["volume"]) == (SERVER, lane.volume_id)
    assert step["request_id"] == given.request_id


def test_its_numbers_are_where_the_settings_say(host: Host) -> None:
    """Of its own calls of Cinder, and of the steps that it has reported."""
    given = host.ledger.give(command(host.lane()))
    with ExitStack() as held:
        port = free_port(held)
        process = host.start("--set", f"metrics.port={port}", faults=[])
        try:
            host.finish(given)
            with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                page = answer.read().decode()
        finally:
            process.terminate()
            assert process.wait(WAIT_S) == 0, host.log.read_text()
    assert 'ledger_agent_step_seconds_count{outcome="succeeded",step="disk_plug"} 1.0' in page
    assert 'ledger_agent_call_seconds_count{neighbour="cinder",outcome="2xx"}' in page
    assert "ledger_agent_registered 1.0" in page


def test_second_agent_of_the_same_lock_path_refuses_to_start(host: Host) -> None:
    with host.agent(faults=[]):
        eventually(lambda: host.ledger.registrations, host.log)
        second = host.start()
        assert second.wait(WAIT_S) == 3
    assert "already runs" in host.log.read_text()


def test_sigterm_leaves_no_run_half_reported(host: Host) -> None:
    slow = [{"call": "brick.connect", "do": "delay", "seconds": 1.0}]
    given = host.ledger.give(command(host.lane()))
    process = host.start(faults=slow)
    eventually(lambda: len(host.ledger.steps_of(given)) == 2, host.log)
    process.terminate()
    assert process.wait(WAIT_S) == 0
    # Whether the third step had begun is a matter of luck; that it is done if and only if
    # it is reported is not.
    reported = host.ledger.steps_of(given)
    assert reported in ([verb.value for verb in ATTACH[:n]] for n in (2, 3))
    assert len(connected_paths(HostState(host.state))) == len(reported) - 2
    with host.agent(faults=[]):
        host.finish(given)


def test_systemd_hears_that_it_is_ready_and_goes_on_working(host: Host, tmp_path: Path) -> None:
    with supervisor(tmp_path / "notify", watchdog_s=0.2) as systemd:
        process = host.start(faults=[], environ=systemd.environ)
        systemd.hears("READY=1")
        for _ in range(3):
            systemd.hears("WATCHDOG=1")
        process.terminate()
        systemd.hears("STOPPING=1")
        assert process.wait(WAIT_S) == 0


def test_guests_of_the_state_file_are_registered(host: Host) -> None:
    with host.agent(faults=[]):
        eventually(lambda: host.ledger.registrations, host.log)
    guest = host.ledger.registrations[0].guests[0]
    assert (guest.server_id, guest.name) == (SERVER, "vm-1")
    assert guest.power_state is PowerState.RUNNING
    assert host.ledger.registrations[0].capabilities["multiattach"] is True
    # By it the ledger tells agents that know attachments, and moves, from older ones (S1, S2).
    assert host.ledger.registrations[0].service_version == SERVICE_VERSION


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[agent]\nworkers = 'many'", "expected a whole number"),
        ("[agnet]\n", "unknown key 'agnet'"),
        ("[ledger]\ntokn = 'x'", "unknown key"),
        ("[agent", "no TOML"),
        ("[libvirt]\ndetach_attempts = 0", "above 0"),
    ],
)
def test_wrong_configuration_is_explained_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, says: str
) -> None:
    path = tmp_path / "agent.toml"
    path.write_text(text)
    assert main(["run", "--config", str(path)]) == 2
    told = capsys.readouterr().err
    assert says in told
    assert str(path) in told
    assert told.count("\n") == 1


def test_a_file_that_cannot_be_used_is_told_before_os_brick_is_loaded(
    host: Host, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """That takes seconds of CPU, and systemd starts the agent again and again."""
    monkeypatch.setattr(agent, "_host", lambda *_: pytest.fail("os-brick was loaded"))
    missing = host.path / "none.pem"
    given = ["--config", str(host.path / "agent.toml"), f"--set=ledger.ca_file={missing}"]
    assert main(["run", *given, "--ledger-url=https://127.0.0.1:1"]) == 1
    assert f"{missing}: cannot be read: No such file or directory" in capsys.readouterr().err


def test_a_survey_is_alone_on_stdout(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Log lines go to stderr: `survey > hv1.json` has JSON."""

    def surveyed(*_: object) -> int:
        structlog.get_logger("host_agent.libvirt.driver").info("libvirt_connected")
        return 0

    monkeypatch.setattr("host_agent.__main__._survey", surveyed)
    assert main(["survey", "--host", "hv1"]) == 0
    told = capsys.readouterr()
    assert told.out == ""
    assert "libvirt_connected" in told.err


def test_what_may_pass_is_started_again_and_what_lasts_is_not(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its unit: no agent stays down for good for a moment's sake."""
    unit = (ROOT / "deploy/systemd/attachment-ledger-agent.service").read_text()
    [line] = re.findall("^RestartPreventExitStatus=(.*)$", unit, re.MULTILINE)
    lasting = [int(status) for status in line.split()]
    ours, file = Authority(tmp_path / "ca"), tmp_path / "file"
    file.touch()
    one, other = ours.pair("compute-1"), ours.pair("compute-1")
    half = {"url": "https://127.0.0.1:1", **one.files, "key_file": str(other.key)}
    given = [f"--set=ledger.{name}={value}" for name, value in half.items()]
    assert host.start(*given, faults=[]).wait(WAIT_S) not in lasting, "it is being replaced"
    assert "is not the key of" in host.log.read_text()

    def started(lock_path: Path) -> int:
        where = ["--config", str(host.path / "agent.toml"), "--lock-path", str(lock_path)]
        return main(["run", *where, "--simulated", str(host.state)])

    for wrong in (file, file / "locks"):
        assert started(wrong) in lasting
    host.state.write_text("{")
    assert started(tmp_path / "locks") in lasting
    host.state.write_text("{}")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "mkdir", full)
    assert started(tmp_path / "new") not in lasting


def test_os_brick_and_libvirt_are_not_loaded_for_a_simulated_host() -> None:
    code = (
        "import sys, host_agent.__main__, host_agent.simulated.adapters\n"
        "print([m for m in ('os_brick', 'libvirt', 'eventlet') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


# --- a host of Nova's, which runs no agent -----------------------------------------------------


def surveyed(host: Host, *arguments: str) -> int:
    where = ("--config", str(host.path / "agent.toml"), "--simulated", str(host.state))
    return main(["survey", "--send", *where, *arguments])


def test_a_survey_is_sent_once_and_whole_only_if_it_has_changed(
    host: Host, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        assert surveyed(host) == 0
    [(first, none), (whole, shown), (again, same)] = host.ledger.sent
    assert (none, same) == (None, None)
    assert first.digest == whole.digest == again.digest
    assert shown is not None
    assert [guest.server_id for guest in shown.guests] == [SERVER]
    assert shown.digest() == whole.digest
    assert 0 < first.made_s < whole.made_s < WAIT_S
    assert capsys.readouterr().out == ""
    assert host.ledger.registrations == [], "it is no agent"
    assert not (host.path / "locks").exists()


def test_another_process_of_the_ledger_takes_it_if_the_first_one_is_away(host: Host) -> None:
    host.ledger.fail_next = [503]
    with ExitStack() as held:
        away = f"http://127.0.0.1:{free_port(held)}"
        urls = f"{host.ledger.url},{away},{host.ledger.url}/"
        assert surveyed(host, f"--ledger-url={urls}") == 0
    assert [shown is None for _, shown in host.ledger.sent] == [True, False]


def test_a_survey_that_nobody_takes_is_told_and_nothing_is_kept_of_it(
    host: Host, capsys: pytest.CaptureFixture[str]
) -> None:
    simulations = host.state.with_name(host.state.name + ".lock")
    before = {*host.path.iterdir(), simulations}
    host.ledger.refuses_sent = True
    assert surveyed(host) == 1
    assert "the ledger refuses the survey (HTTP 409): it asks itself" in capsys.readouterr().err
    host.ledger.denied = True
    assert surveyed(host) == 1
    assert "the ledger refuses this host's token" in capsys.readouterr().err
    host.ledger.stop()
    assert surveyed(host) == 1
    told = capsys.readouterr()
    assert told.err.startswith("attachment-ledger-agent: ledger not reached")
    assert told.err.count("\n") == 1
    assert {*host.path.iterdir()} == before
