"""Who asks for something while processes fail: users of volumes, and who moves servers about.

Whoever gets no answer, or one that says nothing of what was done (5xx, 429), does not know whether
it happened.  Users note what they asked and were told (`tests.chaos.linear`).
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from threading import Event, Lock
from typing import Any

import requests
from urllib3.exceptions import NewConnectionError

from tests.chaos.linear import COMPLETED, FAILED, NEVER, REFUSED, UNKNOWN, Called, History
from tests.stack import Stack

#: Longer than this nobody waits for an answer, or for the end of what was accepted.
ANSWER_S, END_S = 15.0, 40.0
SERVICES = 3
TOO_MANY, SERVER_ERROR = 429, 500
_TOLD = {"completed": COMPLETED, "failed": FAILED, "cancelled": FAILED}
_DISKS = "/v2.1/servers/{}/os-volume_attachments"
_COMPUTE = {"OpenStack-API-Version": "compute 2.95"}


@dataclass
class Told:
    """What all of them were told: the histories of volumes, how often what was answered, and which
    operations were accepted.
    """

    histories: dict[str, History]
    answers: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    accepted: set[str] = field(default_factory=set)
    _lock: Lock = field(default_factory=Lock)

    def note(self, volume: str, called: Called) -> None:
        with self._lock:
            self.histories[volume].calls.append(called)
            self.answers[f"{called.call} {called.told if called.changes else 'read'}"] += 1

    def count(self, what: str) -> None:
        with self._lock:
            self.answers[what] += 1

    def failures(self) -> list[str]:
        """Answers that blame the service itself."""
        return [each for each in self.errors if f": {SERVER_ERROR} " in each]

    def note_error(self, asked: str, answer: requests.Response) -> None:
        with self._lock:
            self.answers[f"HTTP {answer.status_code}"] += 1
            self.errors.append(f"{asked}: {answer.status_code} {answer.text[:300]}")


def _was_sent(error: requests.RequestException) -> bool:
    """As far as one knows: not if there was no connection."""
    reason = getattr(error.args[0], "reason", None) if error.args else None
    return not isinstance(reason, NewConnectionError)


class Caller:
    """Somebody with a token, who asks any of the services."""

    def __init__(self, name: str, stack: Stack, told: Told, token: str, seed: str) -> None:
        self.name, self.told, self.random = name, told, random.Random(seed)
        self._stack, self._http = stack, stack.session(token)

    def ask(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        """The answer; None if nobody knows whether it was done.

        Who listens nowhere was asked for nothing: the next one is, as clients do.
        """
        given = {"json": body} if body is not None else {}
        answer = None
        for number in self.random.sample(range(SERVICES), SERVICES):
            try:
                answer = self._http.request(
                    method,
                    self._stack.url(path, number),
                    params=query,
                    headers=_COMPUTE,
                    timeout=ANSWER_S,
                    **given,
                )
            except requests.RequestException as error:
                if _was_sent(error):
                    return None
            else:
                break
        if answer is None:
            return None
        if answer.status_code == TOO_MANY or answer.status_code >= SERVER_ERROR:
            self.told.note_error(f"{method} {path}", answer)
            return None
        return answer

    def end_of(self, answer: requests.Response | None) -> tuple[str, str]:
        """How what was asked for ended, and the id of its operation."""
        if answer is None:
            return UNKNOWN, ""
        if not answer.ok:
            return REFUSED, ""
        id_ = answer.headers["X-Attachment-Ledger-Operation"].rsplit("/", 1)[-1]
        self.told.accepted.add(id_)
        end = time.monotonic() + END_S
        while time.monotonic() < end:
            shown = self.ask("GET", f"/v1/operations/{id_}", wait_s=2)
            if shown is None or not shown.ok:
                time.sleep(0.1)  # a service that is not there; whoever asks again waits a little
            elif (state := shown.json()["state"]) != "running":
                return _TOLD[shown.json()["outcome"]] if state == "finished" else UNKNOWN, id_
        return UNKNOWN, id_


class User(Caller):
    """Attaches, detaches and looks; `operator` is whom it asks for what was so before."""

    def __init__(self, *args: Any, operator: Caller, servers: list[str]) -> None:
        super().__init__(*args)
        self._operator, self._servers = operator, servers
        self._moments = [time.time()]

    def work(self, stop: Event) -> None:
        deeds: list[Callable[[str, str], None]] = [
            *(self.attach,) * 3,
            *(self.detach,) * 3,
            *(self.list, self.show, self.show, self.as_of),
        ]
        while not stop.is_set():
            volume = self.random.choice(sorted(self.told.histories))
            self.random.choice(deeds)(self.random.choice(self._servers), volume)

    def attach(self, server: str, volume: str) -> None:
        body = {"volumeAttachment": {"volumeId": volume}}
        self._change("attach", server, volume, "POST", _DISKS.format(server), body)

    def detach(self, server: str, volume: str) -> None:
        self._change("detach", server, volume, "DELETE", f"{_DISKS.format(server)}/{volume}")

    def _change(self, call: str, server: str, volume: str, *asked: Any) -> None:
        began = time.time()
        told, _ = self.end_of(self.ask(*asked))
        ended = NEVER if told == UNKNOWN else time.time()
        self.told.note(volume, Called(self.name, call, began, ended, told, server))

    def list(self, server: str, volume: str) -> None:
        def has(answer: requests.Response) -> bool:
            return volume in {row["volumeId"] for row in answer.json()["volumeAttachments"]}

        self._read("list", server, volume, _DISKS.format(server), has)

    def show(self, server: str, volume: str) -> None:
        path = f"{_DISKS.format(server)}/{volume}"
        self._read("show", server, volume, path, lambda answer: answer.ok)

    def _read(
        self,
        call: str,
        server: str,
        volume: str,
        path: str,
        has: Callable[[requests.Response], bool],
    ) -> None:
        began = time.time()
        answer = self.ask("GET", path)
        if answer is not None and (answer.ok or answer.status_code == 404):
            told = has(answer)
            self.told.note(volume, Called(self.name, call, began, time.time(), told, server))

    def as_of(self, _server: str, volume: str) -> None:
        """As of a moment that is over: sometimes of one that was asked for before."""
        if self.random.random() < 0.5:
            self._moments.append(self.random.uniform(self._moments[0], time.time()))
        at, began = self.random.choice(self._moments), time.time()
        has: set[str] = set()
        for event in self._events(volume, at):
            if event is None:
                return
            match event["topic"]:
                case "BlockDeviceMapping.MappingCreated":
                    has.add(event["server_id"])
                case "BlockDeviceMapping.MappingEnded":
                    has.discard(event["server_id"])
        told = frozenset(has)
        self.told.note(volume, Called(self.name, "as of", began, time.time(), told, at=at))

    def _events(self, volume: str, at: float) -> Iterator[Any]:
        """Those of the volume up to the moment; None if they are not told."""
        moment, after = datetime.fromtimestamp(at, UTC).isoformat(), 0
        while after is not None:
            path = f"/v1/volumes/{volume}/history"
            answer = self._operator.ask("GET", path, at=moment, after=after, order="asc")
            if answer is None or not answer.ok:
                yield None
                return
            yield from answer.json()["events"]
            after = answer.json()["next"]


#: What is done to a server in which state: Nova's action and its body.
ACTIONS: dict[str, list[tuple[str, Any]]] = {
    "ACTIVE": [
        *(("os-migrateLive", {"block_migration": False}),) * 4,
        ("migrate", None),
        ("resize", {"flavorRef": "c2.m1024"}),
        ("shelve", None),
        ("os-stop", None),
        ("reboot", {"type": "HARD"}),
    ],
    "VERIFY_RESIZE": [("confirmResize", None), ("revertResize", None)],
    "SHELVED_OFFLOADED": [("unshelve", None)],
    "SHUTOFF": [("os-start", None), ("os-start", None), ("migrate", None), ("shelve", None)],
    "ERROR": [("os-stop", None), ("os-start", None)],
}


class Mover(Caller):
    """Moves servers, stops and starts them."""

    def work(self, stop: Event, servers: list[str]) -> None:
        while not stop.is_set():
            self.move(self.random.choice(servers))

    def server(self, server: str) -> dict[str, Any] | None:
        answer = self.ask("GET", f"/v2.1/servers/{server}")
        return dict(answer.json()["server"]) if answer is not None and answer.ok else None

    def move(self, server: str) -> None:
        shown = self.server(server)
        if shown is None or not (actions := ACTIONS.get(shown["status"])):
            return
        action, body = self.random.choice(actions)
        if action == "os-migrateLive":
            others = [h for h in self._stack.hosts if h != shown["OS-EXT-SRV-ATTR:host"]]
            body = {**body, "host": self.random.choice(others)}
        self.act(server, action, body)

    def act(self, server: str, action: str, body: Any = None) -> str:
        """How it ended."""
        answer = self.ask("POST", f"/v2.1/servers/{server}/action", {action: body})
        told, _ = self.end_of(answer)
        self.told.count(f"{action} {told}")
        return told
