"""`forward`: every event is told to another system at least once, in order, from its own place."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar
from uuid import UUID

import psycopg
import pytest

from ledger.cli import shell
from ledger.cli.log.forward import Forward
from ledger.forward import following, targets
from ledger.forward.following import FeedReader, ForwardError, forward
from ledger.forward.forms import FORMS
from ledger.forward.targets import AwayError, ForwardTarget, Item, RefusedError, target_of
from ledger.forward.told import of_refusal
from ledger.log.application import Ledger
from ledger.upkeep.archive import Archive
from ledger.upkeep.long_work import Checkmark, WorkProgress, run
from ledger.upkeep.retention import detach
from projections.running.detached import DetachedError
from tests.authority import Authority
from tests.doubles.served import Handler, served
from tests.store.following import register
from tests.store.months import Past, day

Db = psycopg.Connection[Any]
WAIT_S = 30.0
#: How late a server is with each of its steps.
LATE_S = 0.1


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "RETRY_FIRST_S", 0.01)
    monkeypatch.setattr(following, "POLL_S", 0.01)
    monkeypatch.setattr(following, "REFUSALS_LATE_S", 0.0)


class CaughtUpError(Exception):
    """The end of the log was told."""


class Recorded:
    """A target that keeps what it takes, in batches."""

    def __init__(self, trouble: Sequence[Exception] = ()) -> None:
        self.batches: list[list[dict[str, Any]]] = []
        self._trouble = list(trouble)

    def send(self, items: Sequence[Item]) -> None:
        if self._trouble:
            raise self._trouble.pop(0)
        self.batches.append([form for _, form in items])

    @property
    def positions(self) -> list[int]:
        """Of events; what has none is a refused request."""
        told = [each["data"] for batch in self.batches for each in batch]
        return [each["position"] for each in told if "position" in each]


def follow(
    dsn: str, target: ForwardTarget, *, form: str = "cloudevents", after: int | None = None
) -> int:
    """As the command does, until the end of the log has been told; where it is then."""
    last: list[int] = []

    def watch(progress: WorkProgress) -> None:
        last[:] = [progress.done]
        if progress.done == progress.total:
            raise CaughtUpError

    with FeedReader.opened(dsn) as reader:

        def work(begun: Checkmark) -> Any:
            return forward(reader, begun, FORMS[form], target, after=after)

        with pytest.raises(CaughtUpError):
            run(dsn, "forward siem", work, watch)
    return last[0]


def test_all_is_told_in_order_and_the_next_time_what_is_new(
    ledger: Ledger, hosts: int, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "BATCH_EVENTS", 4)
    target = Recorded()
    assert follow(database_url, target) == hosts
    assert target.positions == list(range(1, hosts + 1))
    assert {len(batch) for batch in target.batches} == {4, hosts % 4}
    register(ledger, "h7", 7)
    assert follow(database_url, target) == hosts + 1
    assert target.positions == list(range(1, hosts + 2))
    assert follow(database_url, target, after=hosts - 1) == hosts + 1
    assert target.positions[-2:] == [hosts, hosts + 1]


def test_an_empty_log_is_waited_for(database_url: str) -> None:
    assert follow(database_url, Recorded()) == 0


def test_each_consumer_has_a_place_of_its_own(hosts: int, database_url: str, db: Db) -> None:
    follow(database_url, Recorded())
    found = db.execute("SELECT name, done, total FROM long_work").fetchall()
    assert found == [("forward siem", hosts, hosts)]


def test_a_target_that_is_away_gets_the_same_again(hosts: int, database_url: str) -> None:
    target = Recorded([AwayError("gone"), AwayError("still gone")])
    assert follow(database_url, target) == hosts
    assert target.positions == list(range(1, hosts + 1))


def test_what_the_target_refuses_is_not_passed_over(hosts: int, database_url: str) -> None:
    target = Recorded([RefusedError("400: no such field")])
    with FeedReader.opened(database_url) as reader, pytest.raises(ForwardError) as found:
        next(forward(reader, Checkmark(), FORMS["ocsf"], target))
    assert f"events 1 to {hosts}: 400: no such field" in str(found.value)
    assert f"--after {hosts}" in found.value.hint
    follow(database_url, target)
    assert target.positions == list(range(1, hosts + 1))


def test_a_place_that_the_log_never_came_to_is_refused(hosts: int, database_url: str) -> None:
    """Where it was restored, and its position was not."""
    with (
        FeedReader.opened(database_url) as reader,
        pytest.raises(ForwardError, match="restored") as it,
    ):
        next(forward(reader, Checkmark(hosts + 1), FORMS["cadf"], Recorded()))
    assert "Host.Restored" in it.value.hint


def test_a_place_is_restored_with_its_log(
    ledger: Ledger, hosts: int, database_url: str, db: Db
) -> None:
    """What came behind the backup is told anew, under other ids."""
    target = Recorded()
    follow(database_url, target, form="ocsf")
    db.execute("CREATE TABLE kept AS SELECT * FROM long_work")
    register(ledger, "lost", 8)
    follow(database_url, target, form="ocsf")
    db.execute("DELETE FROM events WHERE position > %s", (hosts,))
    db.execute(
        "UPDATE log_head SET (position, chain) ="
        " (SELECT position, chain FROM events WHERE position = %s)",
        (hosts,),
    )
    db.execute("DELETE FROM long_work; INSERT INTO long_work SELECT * FROM kept")
    with Ledger(database_url) as again:
        register(again, "other", 9)
    follow(database_url, target, form="ocsf")
    ends = [each for batch in target.batches for each in batch][-2:]
    assert [each["unmapped"]["position"] for each in ends] == [hosts + 1, hosts + 1]
    assert [each["unmapped"]["host"] for each in ends] == ["lost", "other"]
    assert len({each["metadata"]["uid"] for each in ends}) == 2


def test_detached_months_are_not_passed_over(
    past: Past, archived: Archive, db: Db, database_url: str
) -> None:
    list(detach(db, archived, day(6)))
    with FeedReader.opened(database_url) as reader, pytest.raises(DetachedError):
        list(forward(reader, Checkmark(), FORMS["cadf"], Recorded()))


REFUSAL = {
    "request_id": "req-1",
    "refused_at": datetime.now(UTC),
    "method": "POST",
    "status": 403,
    "code": "forbidden",
    "message": "No.",
    "actor": "eve",
    "user_id": None,
    "project_id": None,
    "address": "192.0.2.7",
    "agent": None,
    "left_out": None,
}


def refuse(db: Db, *ids: str) -> None:
    for id_ in ids:
        db.execute(
            "INSERT INTO refusals (request_id, method, route, status, code, message, actor)"
            " VALUES (%s, 'POST', 'fence', 403, 'forbidden', 'No.', 'eve')",
            (id_,),
        )


def test_refused_requests_are_told_once_and_again_if_the_clock_was_set_back(
    hosts: int, database_url: str, db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes then is of before what was told: none is passed over."""
    target, ids = Recorded(), [f"req-{number}" for number in range(6)]
    ahead = "to_jsonb(clock_timestamp() + interval '1 day')"
    refuse(db, *ids)
    with monkeypatch.context() as small:
        small.setattr(following, "BATCH_EVENTS", 4)
        follow(database_url, target)
    for last in ("req-later", "req-since"):
        refuse(db, last)
        follow(database_url, target)
        db.execute(f"UPDATE long_work SET kept = jsonb_set(kept, '{{refused, 0}}', {ahead})")
    told = [each for batch in target.batches for each in batch if each["type"].endswith("Refused")]
    once = [*ids, "req-later"]
    assert [each["data"]["request_id"] for each in told] == [*once, *once, "req-since"]
    assert len(target.positions) == hosts


def test_a_refusal_is_told_when_those_before_it_are_written(
    hosts: int, database_url: str, db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "REFUSALS_LATE_S", 3600.0)
    refuse(db, "req-1")
    target = Recorded()
    follow(database_url, target)
    assert sum(map(len, target.batches)) == hosts


# --- files ---------------------------------------------------------------------------------------


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_file_grows_by_lines_and_can_be_rotated(
    ledger: Ledger, hosts: int, database_url: str, tmp_path: Path
) -> None:
    path = tmp_path / "told.json"
    target = target_of(path.as_uri(), "cloudevents", token=None, cacert=None)
    follow(database_url, target)
    assert [each["data"]["position"] for each in lines(path)] == list(range(1, hosts + 1))
    path.rename(tmp_path / "told.1")
    register(ledger, "h7", 7)
    follow(database_url, target)
    assert [each["data"]["position"] for each in lines(path)] == [hosts + 1]


def test_a_full_disk_leaves_no_part_of_a_line(
    hosts: int, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, written = tmp_path / "told.json", []
    write = os.write

    def full_once(file: int, data: Any) -> int:
        written.append(file)
        if len(written) == 2:
            raise OSError(28, "No space left on device")
        return write(file, data[: len(data) // 2] if len(written) == 1 else data)

    monkeypatch.setattr(os, "write", full_once)
    follow(database_url, target_of(path.as_uri(), "cloudevents", token=None, cacert=None))
    assert [each["data"]["position"] for each in lines(path)] == list(range(1, hosts + 1))


def test_a_line_that_a_killed_process_left_in_part_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "a told file.json"
    path.write_text('{"n":1}\n{"n":')
    told = of_refusal(UUID(int=1), REFUSAL)
    for number in (2, 3):
        target = target_of(path.as_uri(), "cadf", token=None, cacert=None)
        target.send([(told, {"n": number})])
    assert path.read_text().splitlines() == ['{"n":1}', '{"n":', '{"n":2}', '{"n":3}']


# --- HTTP ----------------------------------------------------------------------------------------


class Collector(Handler):
    """Takes batches; `answers`: how it does so first."""

    answers: ClassVar[list[int]]
    taken: ClassVar[list[tuple[dict[str, str], Any]]]

    def respond(self) -> None:
        body = json.loads(self.body())
        status = self.answers.pop(0) if self.answers else 204
        if status == 204:
            self.taken.append((dict(self.headers), body))
        self.answer(status, b"" if status == 204 else b"not now", Location="/elsewhere")


@pytest.fixture
def collector() -> type[Collector]:
    return type("OfOne", (Collector,), {"answers": [], "taken": []})


def test_an_http_server_gets_arrays_with_the_token(
    hosts: int, database_url: str, collector: type[Collector], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    netrc = tmp_path / "netrc"
    netrc.write_text("default login me password wrong\n")
    monkeypatch.setenv("NETRC", str(netrc))
    with served(collector) as url:
        follow(database_url, target_of(f"{url}/x", "cloudevents", token="t0", cacert=None))
        follow(database_url, target_of(url, "ocsf", token=None, cacert=None), form="ocsf", after=0)
    [(headers, events), (others, _)] = collector.taken
    assert [each["data"]["position"] for each in events] == list(range(1, hosts + 1))
    assert headers["Authorization"] == "Bearer t0"
    assert headers["Content-Type"] == "application/cloudevents-batch+json"
    assert others["Content-Type"] == "application/json"
    assert "Authorization" not in others


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_a_server_in_trouble_is_asked_again(
    hosts: int, database_url: str, collector: type[Collector], status: int
) -> None:
    collector.answers[:] = [status, status]
    with served(collector) as url:
        follow(database_url, target_of(url, "cadf", token=None, cacert=None), form="cadf")
    assert [len(body) for _, body in collector.taken] == [hosts]


def test_what_is_too_much_at_once_is_sent_by_halves_and_one_alone_ends_it(
    ledger: Ledger, hosts: int, database_url: str, collector: type[Collector],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def respond(self: Any) -> None:
        body = json.loads(self.body())
        too_large = any(each["data"]["position"] == hosts + 2 for each in body)
        status = 413 if too_large or len(body) > 2 else 204
        if status == 204:
            self.taken.append(({}, body))
        self.answer(status, b"too large" if status == 413 else b"")

    monkeypatch.setattr(collector, "respond", respond)
    with served(collector) as url:
        target = target_of(url, "cloudevents", token=None, cacert=None)
        assert follow(database_url, target) == hosts
        taken = [each["data"]["position"] for _, body in collector.taken for each in body]
        assert taken == list(range(1, hosts + 1))
        assert max(len(body) for _, body in collector.taken) == 2
        for name in ("h7", "h8", "h9"):
            register(ledger, name, 7)
        one = rf"events {hosts + 2} to {hosts + 2}: .* answers 413: too large"
        with FeedReader.opened(database_url) as reader, pytest.raises(ForwardError, match=one):
            next(forward(reader, Checkmark(hosts, hosts), FORMS["cloudevents"], target))
        follow(database_url, target, after=hosts + 2)
    assert collector.taken[-1][1][0]["data"]["position"] == hosts + 3


@pytest.mark.parametrize("status", [300, 302, 305, 400, 401, 413])
def test_what_a_server_refuses_is_told_with_its_answer(
    hosts: int, collector: type[Collector], status: int
) -> None:
    collector.answers[:] = [status]
    with served(collector) as url, pytest.raises(RefusedError, match=f"{status}: not now"):
        target_of(url, "ocsf", token=None, cacert=None).send([])


def test_a_server_that_is_gone_or_silent_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "SEND_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(AwayError, match="timed out"):
            target_of(url, "ocsf", token=None, cacert=None).send([])
    with pytest.raises(AwayError, match="refused"):
        target_of(url, "ocsf", token=None, cacert=None).send([])


# --- syslog --------------------------------------------------------------------------------------


class Lines:
    """A syslog server that keeps what comes; each line of it is closed after `frames` frames."""

    def __init__(self, frames: int = 1_000_000, tls: ssl.SSLContext | None = None) -> None:
        self.frames: list[bytes] = []
        self._most, self._tls = frames, tls
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                line, _ = self.server.accept()
            except OSError:
                return
            with suppress(ssl.SSLError), line:  # of who does not believe us
                if self._tls:
                    line = self._tls.wrap_socket(line, server_side=True)
                with line:
                    self._read(line)

    def _read(self, line: socket.socket) -> None:
        with line.makefile("rb") as file:
            for _ in range(self._most):
                length = b"".join(iter(lambda: file.read(1).strip(), b""))
                if not length:
                    return
                self.frames.append(file.read(int(length)))


@contextmanager
def syslog(**more: Any) -> Iterator[Lines]:
    lines = Lines(**more)
    try:
        yield lines
    finally:
        lines.server.close()


@contextmanager
def line_to(there: Lines, scheme: str = "syslog", cacert: Path | None = None) -> Iterator[Any]:
    """A target, whose line is closed in the end."""
    url = f"{scheme}://127.0.0.1:{there.port}"
    target: Any = target_of(url, "cadf", token=None, cacert=str(cacert) if cacert else None)
    try:
        yield target
    finally:
        target._drop()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come to it"
        threading.Event().wait(0.01)


def test_syslog_has_a_frame_for_each(hosts: int, database_url: str) -> None:
    with syslog() as there, line_to(there) as target:
        follow(database_url, target, form="cadf")
        until(lambda: len(there.frames) == hosts)
    head, _, body = there.frames[0].partition(b" - HostRegistered - \xef\xbb\xbf")
    assert head.startswith(b"<110>1 20")
    assert head.split()[2:] == [socket.gethostname().encode(), b"attachment-ledger"]
    assert json.loads(body)["action"] == "create/Host.HostRegistered"


def test_a_syslog_line_that_was_closed_is_made_anew(
    ledger: Ledger, hosts: int, database_url: str
) -> None:
    with syslog(frames=hosts) as there, line_to(there) as target:
        follow(database_url, target, form="cadf")
        until(lambda: len(there.frames) == hosts)
        line = target._line
        until(lambda: line.recv(1, socket.MSG_PEEK) == b"")
        register(ledger, "h7", 7)
        follow(database_url, target, form="cadf")
        until(lambda: len(there.frames) == hosts + 1)


def test_a_syslog_server_that_reads_nothing_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernel takes what it has room for, and then no more."""
    monkeypatch.setattr(targets, "SEND_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        url = f"syslog://127.0.0.1:{silent.getsockname()[1]}"
        target = target_of(url, "cadf", token=None, cacert=None)
        told = of_refusal(UUID(int=1), REFUSAL)
        with pytest.raises(AwayError, match="take what it is sent"):
            target.send([(told, {"x": "y" * 100_000})])


def test_syslog_over_tls_believes_only_its_authority(
    hosts: int, database_url: str, tmp_path: Path
) -> None:
    authority, foreign = Authority(tmp_path / "ca"), Authority(tmp_path / "other")
    pair = authority.pair("IP:127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    with syslog(tls=context) as there:
        refused = pytest.raises(AwayError, match="CERTIFICATE_VERIFY_FAILED")
        with line_to(there, "syslog+tls", foreign.certificate) as target, refused:
            target.send([])
        with line_to(there, "syslog+tls", authority.certificate) as target:
            follow(database_url, target, form="cadf")
        until(lambda: len(there.frames) == hosts)


def test_a_syslog_server_that_refuses_us_after_the_handshake_has_taken_nothing(
    tmp_path: Path,
) -> None:
    """It wants a certificate of ours, and looks for it when our side of TLS 1.3 is over."""
    authority = Authority(tmp_path / "ca")
    pair = authority.pair("IP:127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    context.load_verify_locations(authority.certificate)
    context.verify_mode = ssl.CERT_REQUIRED

    def refuse(server: socket.socket) -> None:
        line = context.wrap_socket(server.accept()[0], True, do_handshake_on_connect=False)
        with line, suppress(OSError):
            line.setblocking(False)
            while True:
                threading.Event().wait(LATE_S)
                with suppress(ssl.SSLWantReadError):
                    line.do_handshake()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=refuse, args=(server,), daemon=True).start()
        url = f"syslog+tls://127.0.0.1:{server.getsockname()[1]}"
        target = target_of(url, "cadf", token=None, cacert=str(authority.certificate))
        with pytest.raises(AwayError, match=r"certificate|hangs up|reset"):
            target.send([(of_refusal(UUID(int=1), REFUSAL), {"n": 1})])


# --- the command ---------------------------------------------------------------------------------


@contextmanager
def forwarding(dsn: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "ledger", "forward", "siem", f"--database-url={dsn}", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.slow
def test_where_a_process_was_killed_the_one_that_waits_goes_on(
    ledger: Ledger, hosts: int, database_url: str, tmp_path: Path
) -> None:
    path = tmp_path / "told.json"
    words = ("--to", path.as_uri(), "--format", "cloudevents")

    def positions() -> list[int]:
        return [each["data"]["position"] for each in lines(path)]

    with forwarding(database_url, *words) as process:
        until(lambda: len(positions()) == hosts)
        named = ("forward", "siem", f"--database-url={database_url}", *words)
        assert shell.main([*named, "--after=1"]) == 4, "its place would be old by then"
        with forwarding(database_url, *words) as second:
            assert second.stderr is not None
            assert "another process does this now: forward siem" in second.stderr.readline()
            process.send_signal(signal.SIGKILL)
            process.wait()
            last = register(ledger, "h7", 7)
            until(lambda: last in positions())
    assert sorted(set(positions())) == list(range(1, last + 1))


TO_HTTP = ("--to", "http://x", "--format", "cadf")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--to", "udp://x", "--format", "cadf"), "is no target"),
        (("--to", "file://host/path", "--format", "cadf"), "is no target"),
        (("--to", "file:///dev/null", "--format", "cadf"), "no regular file"),
        ((*TO_HTTP, "--token-file", "/none"), "cannot be read"),
        ((*TO_HTTP, "--token-file", __file__), "not one line"),
        ((*TO_HTTP, "--token-file", sys.executable), "cannot be read"),
    ],
)
def test_wrong_usage_is_told(
    words: tuple[str, ...], why: str, database_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shell.main(["forward", "siem", f"--database-url={database_url}", *words]) == 2
    assert why in capsys.readouterr().err


def test_the_command_ends_in_words_where_it_cannot_go_on(
    hosts: int, database_url: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    to = ["--to", (tmp_path / "x").as_uri(), "--format", "cadf", "--after", str(hosts + 5)]
    assert shell.main(["forward", "siem", f"--database-url={database_url}", *to]) == 4
    told = capsys.readouterr().err
    assert f"the log ends at position {hosts}, before --after {hosts + 5}" in told
    with pytest.raises(SystemExit):
        shell.main(["forward", "No Name", *to])


def test_the_lines_of_the_manual_are_commands() -> None:
    text = (Path(__file__).parents[2] / "docs/audit.md").read_text()
    text = text.partition("## Sent to another")[2].partition("\n## ")[0]
    [block] = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    typed = [line.split()[3:] for line in block.splitlines()]
    assert len(typed) == 3
    for words in typed:
        command = Forward(shell.Shell(), None, cmd_name="forward")
        parsed = command.get_parser("forward").parse_args(words)
        assert target_of(parsed.to, parsed.format, token=None, cacert=None) is not None
