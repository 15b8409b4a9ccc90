"""`survey` against answers over HTTP: the service's own Nova API and the simulated Cinder; a played
Nova for what ours never does; a simulated Keystone for who asks.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import UUID, uuid4

import pytest
from keystoneauth1 import session

from host_agent.shared.contract.survey import HostsWord
from host_agent.shared.platform.text import one_line
from ledger.cli import shell
from ledger.cli.survey import hosts as survey_hosts
from ledger.nova_beside import reads as survey_reads
from ledger.trial.cinder.model.model import CinderModel
from tests.doubles.running_cinder import RunningCinder, running_cinder
from tests.doubles.served import Handler, served
from tests.doubles.simulated_keystone import SimulatedKeystone
from tests.printed import printed
from tests.stack import ADMIN, ROOT, Stack, eventually

#: The command line, with a cloud that is called `admin`; the rest of its exit status and output.
Survey = Callable[..., tuple[int, list[dict[str, Any]], str]]
ROW: dict[str, Any] = {
    "os-extended-volumes:volumes_attached": [],
    "OS-EXT-SRV-ATTR:host": "h1",
    "OS-EXT-STS:vm_state": "active",
    "OS-EXT-STS:task_state": None,
}


class PlayedNova(Handler):
    """Lists `listed` page by page; knows `servers`, too; `refuses` all."""

    listed: list[dict[str, Any]]
    servers: dict[str, dict[str, Any]]
    deleted: set[str]  # markers that are no more
    refuses: int
    asked: list[str]
    computes: list[str]

    def respond(self) -> None:
        url = urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        self.asked.append(f"{self.command} {url.path}")
        if self.refuses:
            return self._json(self.refuses, {"forbidden": {"message": "Policy doesn't allow."}})
        if url.path.endswith("/servers/detail"):
            return self._page(query)
        if url.path == "/os-services" and query == {"binary": "nova-compute"}:
            return self._json(200, {"services": [{"host": each} for each in self.computes]})
        if url.path.endswith("/os-volume_attachments"):
            return self._json(200, {"volumeAttachments": []})
        known = self.servers.get(url.path.rpartition("/")[2])
        if known is None:
            return self._json(404, {"itemNotFound": {"message": "no such server"}})
        return self._json(200, {"server": known})

    def _page(self, query: dict[str, str]) -> None:
        assert query["all_tenants"] == "1"
        ids = [row["id"] for row in self.listed]
        marker = query.get("marker")
        if marker in self.deleted:
            return self._json(400, {"badRequest": {"message": "marker not found"}})
        begin = ids.index(marker) + 1 if marker else 0
        page = self.listed[begin : begin + int(query["limit"])]
        return self._json(200, {"servers": page})

    def _json(self, status: int, body: Any) -> None:
        self.answer(status, json.dumps(body).encode(), Content_Type="application/json")


@pytest.fixture
def nova() -> Iterator[type[PlayedNova]]:
    more: dict[str, Any] = {
        "listed": [],
        "servers": {},
        "deleted": set(),
        "refuses": 0,
        "asked": [],
        "computes": [],
    }
    kind = type("Nova", (PlayedNova,), more)
    with served(kind) as kind.url:  # type: ignore[attr-defined]
        yield kind


@pytest.fixture
def cinder() -> Iterator[RunningCinder]:
    with running_cinder() as running:
        yield running


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The methods of all requests to Nova and Cinder."""
    methods: list[str] = []
    plain = session.Session.request

    def request(self: Any, url: str, method: str, **how: Any) -> Any:
        if "/auth/tokens" not in url:
            methods.append(method)
        return plain(self, url, method, **how)

    monkeypatch.setattr(session.Session, "request", request)
    return methods


def cloud(compute: str, volume: str, auth: dict[str, Any] | None = None) -> dict[str, Any]:
    static = {"auth_type": "admin_token", "auth": {"endpoint": compute, "token": ADMIN}}
    return {
        **(auth or static),
        "compute_endpoint_override": compute,
        "block_storage_endpoint_override": volume,
    }


def keystones(given: dict[str, Any]) -> dict[str, Any]:
    kind = given.pop("auth_type")
    return {"auth_type": kind, "auth": given}


@pytest.fixture
def survey(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Survey:
    def run(known: dict[str, Any], *arguments: str) -> tuple[int, list[dict[str, Any]], str]:
        path = tmp_path / "clouds.yaml"
        path.write_text(json.dumps({"clouds": {"admin": known}}))  # JSON is YAML
        monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(path))
        capsys.readouterr()
        how = ("--os-cloud", "admin", "--apart", "0s", "-f", "json", *arguments)
        code = shell.main(["survey", *how])
        shown = capsys.readouterr()
        return code, json.loads(shown.out or "[]"), shown.err

    return run


def classes(rows: list[dict[str, Any]]) -> list[str]:
    return [row["Class"] for row in rows]


@pytest.mark.slow
def test_a_cloud_with_drift_made_by_hand_is_surveyed_without_a_write(
    ready: Stack, survey: Survey, sent: list[str], tmp_path: Path
) -> None:
    (server,) = ready.servers
    lost, kept, stuck, nobodys = (ready.add_volume() for _ in range(4))
    for volume in (lost, kept):
        ready.completed(ready.attach(server, volume))
    here = cloud(ready.url("/v2.1"), ready.cinder.endpoint)
    assert survey(here)[:2] == (0, [])
    model = ready.cinder.model
    (row,) = model.attachments_of(lost)
    model.attachment_delete(row.id)
    model.volumes[stuck].status = "deleting"
    model.volumes[stuck].created_at -= 60
    model.volumes[stuck].changes = 1
    strange = model.attachment_create(nobodys, str(uuid4()), {"host": "h9"})
    model.attachment_complete(strange.id)
    before = model.counts.copy()
    page = tmp_path / "survey.html"
    code, rows, told = survey(here, "--stuck", "0s", "--html", str(page))
    assert code == 8
    assert classes(rows) == ["owner_gone", "attachment_lost", "volume_stuck"]
    assert rows[0]["Attachment"] == strange.id
    assert rows[0]["Command"].endswith(f"volume attachment delete {strange.id}")
    assert rows[1]["Seen"]["nova"]["host"] == "compute-1"
    assert rows[1]["Seen"]["cinder"] is None
    assert "again in 0 s" in told
    text = page.read_text()
    assert all(name in text for name in (*classes(rows), strange.id))
    assert not re.search(r"<script|src=|href=|url\(", text)
    assert set(sent) == {"GET"}
    asked = {name for name, n in model.counts.items() if n != before.get(name, 0)}
    assert asked <= {"attachment_list", "attachment_show", "volume_list", "volume_show"}


def test_what_a_host_prints_is_heard_as_a_third_party(
    ready: Stack, survey: Survey, tmp_path: Path
) -> None:
    (server,) = ready.servers
    volume = ready.add_volume()
    ready.completed(ready.attach(server, volume))
    state = tmp_path / "compute-1.json"
    command = ["-m", "host_agent", "survey", "--host", "compute-1", "--simulated", str(state)]
    locks = tmp_path / "nothing-here"
    done = subprocess.run(
        [sys.executable, *command, "--lock-path", str(locks)],
        capture_output=True,
        check=True,
        cwd=ROOT,
    )
    assert not locks.exists(), "nothing is written"
    said = json.loads(done.stdout)
    assert said["host"] == "compute-1"
    file = tmp_path / "h.json"
    file.write_bytes(done.stdout)
    here = cloud(ready.url("/v2.1"), ready.cinder.endpoint)
    found = classes(survey(here, "--hosts", str(file))[1])
    assert "disk_missing" not in found
    (guest,) = said["survey"]["guests"]
    guest["disks"] = []
    file.write_text(json.dumps(said))
    code, rows, _ = survey(here, "--hosts", str(file))
    assert code == 8
    assert "disk_missing" in classes(rows)
    file.write_text("{}")
    assert survey(here, "--hosts", str(file))[0] == 2


def reserved(model: CinderModel) -> tuple[str, str]:
    """A volume that is reserved for a server; both ids."""
    server, volume = str(uuid4()), model.add_volume(project_id="p")
    model.attachment_create(volume.id, server)
    return server, volume.id


def test_a_server_that_no_list_has_is_asked_for_by_its_id(
    nova: type[PlayedNova], cinder: RunningCinder, survey: Survey
) -> None:
    """Nova lists no server that is deleted and can be restored."""
    server, volume = reserved(cinder.model)
    here = cloud(nova.url, cinder.endpoint)  # type: ignore[attr-defined]
    assert classes(survey(here)[1]) == ["owner_gone"]
    row = {**ROW, "id": server, "OS-EXT-STS:vm_state": "soft-delete"}
    nova.servers[server] = {**row, "os-extended-volumes:volumes_attached": [{"id": volume}]}
    assert survey(here)[:2] == (0, [])


def test_servers_of_a_cell_that_is_down_are_named_and_nothing_is_said_of_them(
    nova: type[PlayedNova], cinder: RunningCinder, survey: Survey
) -> None:
    server, _ = reserved(cinder.model)
    nova.listed.append({"id": server, "status": "UNKNOWN", "links": []})
    code, rows, told = survey(cloud(nova.url, cinder.endpoint))  # type: ignore[attr-defined]
    assert (code, rows) == (0, [])
    assert "1 servers of which Nova does not tell" in told


def test_a_mapping_that_names_no_attachment_is_in_nova_s_list_of_servers_alone(
    nova: type[PlayedNova], cinder: RunningCinder, survey: Survey
) -> None:
    """So Nova 34 tells one of before Queens; its attachment is not to be deleted."""
    server, volume = str(uuid4()), cinder.model.add_volume(project_id="p").id
    made = cinder.model.attachment_create(volume, server, {"host": "h1"})
    cinder.model.attachment_complete(made.id)
    mapped = {"os-extended-volumes:volumes_attached": [{"id": volume}]}
    nova.listed.append({**ROW, **mapped, "id": server})
    here = cloud(nova.url, cinder.endpoint)  # type: ignore[attr-defined]
    assert survey(here, "--every-mapping")[:2] == (0, [])
    assert f"GET /servers/{server}/os-volume_attachments" in nova.asked


def test_lists_go_by_page_and_on_behind_a_row_that_is_deleted_meanwhile(
    nova: type[PlayedNova],
    cinder: RunningCinder,
    survey: Survey,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(survey_reads, "PAGE_ROWS", 2)
    nova.listed += [{**ROW, "id": str(UUID(int=n))} for n in range(7)]
    nova.deleted.add(str(UUID(int=3)))
    for _ in range(3):
        cinder.model.add_volume(project_id="p")
    code, rows, told = survey(cloud(nova.url, cinder.endpoint))  # type: ignore[attr-defined]
    assert (code, rows) == (0, [])
    assert "7 servers, 3 volumes" in told
    assert len(nova.asked) > 2 * 5


def test_who_sees_one_project_alone_is_told_so_and_nothing_else(
    nova: type[PlayedNova], cinder: RunningCinder, survey: Survey, keystone: SimulatedKeystone
) -> None:
    cinder.model.add_volume(project_id="own")

    def here(*roles: str) -> dict[str, Any]:
        auth = keystones(keystone.user("somebody", *roles, project="own"))
        return cloud(nova.url, cinder.endpoint, auth)  # type: ignore[attr-defined]

    code, rows, told = survey(here("service"))
    assert (code, rows) == (4, [])
    assert "cannot be taken as missing" in told
    assert "service" in told
    assert survey(here("admin"))[0] == 0
    cinder.model.add_volume(project_id="another")
    assert survey(here("reader"))[0] == 0, "what it sees shows that it sees all"


def test_novas_refusal_is_told_with_what_it_takes(
    nova: type[PlayedNova], cinder: RunningCinder, survey: Survey
) -> None:
    cinder.model.add_volume(project_id="p")
    nova.refuses = 403
    code, rows, told = survey(cloud(nova.url, cinder.endpoint))  # type: ignore[attr-defined]
    assert (code, rows) == (4, [])
    assert "administrator" in told


def test_what_only_the_second_round_has_seen_is_not_told(
    nova: type[PlayedNova],
    cinder: RunningCinder,
    survey: Survey,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cinder.model.add_volume(project_id="p")
    monkeypatch.setattr("time.sleep", lambda _s: reserved(cinder.model))
    code, rows, told = survey(cloud(nova.url, cinder.endpoint))  # type: ignore[attr-defined]
    assert (code, rows) == (0, [])
    assert "so not told: 1" in told


@pytest.mark.parametrize(
    ("arguments", "why"),
    [(["--os-cloud", "nowhere"], "no cloud 'nowhere'"), ([], "Which cloud?")],
)
def test_a_cloud_that_is_not_there_is_wrong_usage(
    arguments: list[str],
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert shell.main(["survey", *arguments]) == 2
    assert why in capsys.readouterr().err


def test_a_cloud_of_the_environment_will_do(
    nova: type[PlayedNova],
    cinder: RunningCinder,
    monkeypatch: pytest.MonkeyPatch,
    keystone: SimulatedKeystone,
) -> None:
    for name, value in keystone.user("root", "admin", project="own").items():
        monkeypatch.setenv(f"OS_{name.upper()}", value)
    monkeypatch.setenv("OS_COMPUTE_ENDPOINT_OVERRIDE", nova.url)  # type: ignore[attr-defined]
    monkeypatch.setenv("OS_VOLUME_ENDPOINT_OVERRIDE", cinder.endpoint)
    assert shell.main(["survey", "--apart", "0s"]) == 0


EMPTY_SURVEY = {
    "boot_id": "b",
    "epoch": 0,
    "guests": [],
    "connections": [],
    "storage": [],
    "secrets": [],
    "blind": [],
    "why_blind": [],
}

#: In place of ssh, first in PATH.  A host says what its file for this call has, or HOST.json.
FAKE_SSH = r"""#!/bin/bash
cd "$(dirname "$0")"
while [ "${1#-}" != "$1" ]; do echo "$1"; shift; done >options
host=${1#root@}
echo "${*:2}" >>"$host.asked"; n=$(wc -l <"$host.asked")
[ -e "$host.$n" ] || n=json
case $host in
  hangs) sleep 600 & echo $! >child; wait ;;
  leaves) sleep 600 & echo $! >child; cat leaves.json ;;
  floods) yes ;;
  refused) printf 'a banner\nssh: no \033[2Jroute\n' >&2; exit 255 ;;
  garbage) echo 'Last login: today' ;;
  *) cat "$host.$n" ;;
esac
"""


class Hosts:
    """What each host says, in files of `room`."""

    def __init__(self, room: Path) -> None:
        self.room = room
        room.mkdir()
        (room / "ssh").write_text(FAKE_SSH)
        (room / "ssh").chmod(0o755)

    def says(self, host: str, *guests: dict[str, Any], called: str | None = None, n: str) -> None:
        word = {"host": called or host, "survey": {**EMPTY_SURVEY, "guests": guests}}
        (self.room / f"{host}.{n}").write_text(json.dumps(word))

    def asked(self, host: str) -> list[str]:
        path = self.room / f"{host}.asked"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hosts:
    found = Hosts(tmp_path / "ssh")
    monkeypatch.setenv("PATH", f"{found.room}:{os.environ['PATH']}")
    return found


def test_all_hosts_of_nova_are_asked_by_ssh_in_each_round(
    nova: type[PlayedNova], cinder: RunningCinder, survey: Survey, hosts: Hosts
) -> None:
    cinder.model.add_volume(project_id="p")
    here = cloud(nova.url, cinder.endpoint)  # type: ignore[attr-defined]
    missing, late = str(uuid4()), str(uuid4())
    nova.listed += [{**ROW, "id": missing}, {**ROW, "id": late, "OS-EXT-SRV-ATTR:host": "h2"}]
    nova.computes += ["h1", "h2"]
    hosts.says("h1", n="json")
    hosts.says("h2", n="1")
    hosts.says("h2", {"server_id": late, "power_state": "running"}, n="json")
    code, rows, told = survey(here, "--ssh")
    assert (code, [(row["Class"], row["Server"]) for row in rows]) == (
        8,
        [("guest_missing", missing)],
    )
    options = (hosts.room / "options").read_text().split()
    assert options[-1] == "--"
    assert "-oBatchMode=yes" in options
    assert hosts.asked("h1") == hosts.asked("h2") == ["attachment-ledger-agent survey"] * 2
    assert "2 hosts; again" in told
    assert survey(here, "--ssh", "h2")[:2] == (0, []), "who is not named is not asked"


def test_a_host_that_gives_no_survey_of_its_own_is_named_and_no_party(
    nova: type[PlayedNova],
    cinder: RunningCinder,
    survey: Survey,
    hosts: Hosts,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(survey_hosts, "ANSWER_BYTES_MAX", 100_000)
    cinder.model.add_volume(project_id="p")
    hosts.says("liar", called="h1", n="json")
    hosts.says("h1", n="json")
    (hosts.room / "deep.json").write_text('{"x":' + "[" * 50_000)
    (hosts.room / "bytes.json").write_bytes(b'{"host":"\xff"}')
    blind = {"blind": ["guests"] * 99, "why_blind": ["hangs\nNot read: " + "x" * 400] * 99}
    word = {"host": "blind", "survey": {**EMPTY_SURVEY, **blind}}
    (hosts.room / "blind.json").write_text(json.dumps(word))
    hostile = [f"-oProxyCommand=touch {tmp_path}/made", "h1;touch made", "h\n1", "a@h1"]
    said = {
        "floods": "it says too much",
        "refused": r"exit code 255: ssh: no \u001b[2Jroute",
        "garbage": "is no survey of a host",
        "liar": "its agent calls it h1",
        "deep": "maximum recursion depth",
        "bytes": "is no survey of a host",
        "blind": r"the guests of host blind: hangs\u000aNot read: xxx",
        **dict.fromkeys(hostile, "ssh is given no such name"),
    }
    nova.computes += [*said, None, ""]  # type: ignore[list-item]
    for host in said:
        nova.listed.append({**ROW, "id": str(uuid4()), "OS-EXT-SRV-ATTR:host": host})
    code, rows, told = survey(cloud(nova.url, cinder.endpoint), "--ssh")  # type: ignore[attr-defined]
    assert (code, rows) == (0, [])
    lines = told.splitlines()
    silent = [one_line(host) for host in sorted(said) if host != "blind"]
    assert f"Not read: a survey of {', '.join(silent)}. Nothing is said of it." in lines
    for host, why in said.items():
        [line] = [each for each in lines if why in each and one_line(host) in each]
        assert len(line) < 300
    assert "1 hosts; again" in told, "which does not see its guests"
    assert not (tmp_path / "made").exists()


def test_all_hosts_that_do_not_answer_are_named_however_many(
    nova: type[PlayedNova], cinder: RunningCinder, survey: Survey, hosts: Hosts
) -> None:
    cinder.model.add_volume(project_id="p")
    nova.computes += ["gone", *(f"off{n}" for n in range(10, 30))]
    hosts.says("gone", n="1")
    told = survey(cloud(nova.url, cinder.endpoint), "--ssh")[2]  # type: ignore[attr-defined]
    lines = told.splitlines()
    off = ", ".join([*nova.computes[1:], "gone"])
    assert f"Not read: a survey of {off}. Nothing is said of it." in lines
    assert "a survey of off10: exit code 1: cat: off10.json: No such file" in told
    assert "Not read: 12 more." in lines, "reasons"


def test_a_host_that_does_not_answer_is_given_up_with_all_that_ssh_has_begun(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(survey_hosts, "ANSWER_S", 5.0)
    silent: dict[str, str] = {}
    assert survey_hosts.by_ssh(["hangs"], silent, []) == {}
    assert silent == {"hangs": "no answer in 5 s"}
    child = int((hosts.room / "child").read_text())
    eventually(lambda: not Path(f"/proc/{child}").exists(), "it is not left behind")


def test_what_ssh_leaves_behind_is_ended_and_keeps_no_survey_back(hosts: Hosts) -> None:
    """A command that is the way there, say: it has the pipes of ssh, too."""
    hosts.says("leaves", n="json")
    silent: dict[str, str] = {}
    assert [*survey_hosts.by_ssh(["leaves"], silent, [])] == ["leaves"]
    assert silent == {}
    child = int((hosts.room / "child").read_text())
    eventually(lambda: not Path(f"/proc/{child}").exists(), "it is not left behind")


INTERRUPTED = """
import signal
from ledger.cli.survey import hosts
signal.signal(signal.SIGINT, signal.default_int_handler)
hosts.by_ssh(["hangs"], {}, [])
"""


def test_ctrl_c_ends_at_once_with_all_that_ssh_has_begun(hosts: Hosts) -> None:
    file = hosts.room / "child"
    with subprocess.Popen([sys.executable, "-c", INTERRUPTED], cwd=ROOT) as asks:
        eventually(lambda: file.exists() and file.read_text(), "ssh hangs")
        asks.send_signal(signal.SIGINT)
        assert asks.wait(survey_hosts.ANSWER_S / 2) == -signal.SIGINT
    child = int(file.read_text())
    eventually(lambda: not Path(f"/proc/{child}").exists(), "it is not left behind")


def test_hosts_are_asked_in_one_way_and_not_without_ssh(
    nova: type[PlayedNova],
    cinder: RunningCinder,
    survey: Survey,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    here = cloud(nova.url, cinder.endpoint)  # type: ignore[attr-defined]
    monkeypatch.setenv("PATH", str(tmp_path))
    code, _, told = survey(here, "--ssh", "h1")
    assert code == 2
    assert "ssh cannot be run" in told
    with pytest.raises(SystemExit, match="2"):
        survey(here, "--ssh", "h1", "--hosts", "h.json")


PAGE = (ROOT / "docs/survey.md").read_text()
LINES = re.findall(r"^\$ attachment-ledger (survey .*)$", PAGE, re.MULTILINE)


@pytest.mark.parametrize("line", LINES)
def test_each_command_of_the_page_does_what_it_says(
    line: str,
    nova: type[PlayedNova],
    cinder: RunningCinder,
    survey: Survey,
    hosts: Hosts,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reserved(cinder.model)
    monkeypatch.chdir(tmp_path)
    nova.computes += ["hv1", "hv2"]
    for name in nova.computes:
        hosts.says(name, n="json")
        (tmp_path / f"{name}.json").write_bytes((hosts.room / f"{name}.json").read_bytes())
    words = shlex.split(line.partition("  #")[0])[1:]
    code, _, _ = survey(cloud(nova.url, cinder.endpoint), *words, "--apart", "0s")  # type: ignore[attr-defined]
    assert code == 8
    assert ("--html" in words) == (tmp_path / "survey.html").exists()
    assert ("--ssh" in words) == bool(hosts.asked("hv2"))


def test_what_the_page_has_a_host_print_is_read(
    nova: type[PlayedNova], cinder: RunningCinder, survey: Survey, hosts: Hosts, tmp_path: Path
) -> None:
    cinder.model.add_volume(project_id="p")
    hosts.says("hv1", n="json")
    words = printed("survey.md", "ssh ")
    subprocess.run(["bash", "-ec", words], cwd=tmp_path, check=True)
    assert hosts.asked("hv1") == [survey_hosts.COMMAND]
    here = cloud(nova.url, cinder.endpoint)  # type: ignore[attr-defined]
    code, _, told = survey(here, "--hosts", str(tmp_path / "hv1.json"))
    assert code == 0
    assert "1 hosts; again" in told


def test_the_page_has_every_class() -> None:
    from handlers.drift.beside_words import KINDS

    shown = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
    assert shown == [name for name in KINDS if name != "attachment_ended"], "which takes a log"
    assert len(LINES) > 3
    assert HostsWord.__doc__
