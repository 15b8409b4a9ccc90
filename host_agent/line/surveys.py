"""Surveys: the ledger requests one, and a separate thread makes and sends it.

With its commands the ledger sends the token of the survey that it requests, and the digest of the
last one that it has.  One survey is made at a time, for the newest request.  It is sent whole only
if it differs from the ledger's.  Commands and reports never wait for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import structlog

from host_agent.clock import Stopping
from host_agent.line.client import LedgerClient, LinkError
from host_agent.shared.contract.backoff import Backoff
from host_agent.shared.contract.messages import SurveyWanted
from host_agent.shared.contract.survey import Survey, SurveyAnswer, SurveySent
from host_agent.shared.contract.wire import plain

_LOG = structlog.get_logger(__name__)

#: Makes the survey of an epoch.
Look = Callable[[int], Survey]
#: One request to the ledger: method, path, body; raises LinkError, Stopping.
Call = Callable[[str, str, Any], tuple[int, dict[str, Any]]]


@dataclass(frozen=True)
class SurveyRequest:
    """A requested survey of this epoch, and the digest of the last one that the ledger has."""

    token: str
    epoch: int
    digest: str | None


def send(client: LedgerClient, survey: Survey, began: float) -> None:
    """Send a survey that the ledger has not asked for, whole only if it differs from the ledger's.

    `began`: when it was begun, by the monotonic clock.  Raises LinkError if no process of the
    ledger takes it.
    """
    same = SurveySent(digest=survey.digest(), made_s=0.0)
    status, reply = _put(client, {}, same, began)
    if reply.get("again") is True:
        status, reply = _put(client, plain(survey), same, began)
    if status != HTTPStatus.OK:
        raise LinkError(f"the ledger refuses the survey (HTTP {status}): {reply.get('detail')}")


def _put(
    client: LedgerClient, survey: dict[str, Any], sent: SurveySent, began: float
) -> tuple[int, dict[str, Any]]:
    def put() -> tuple[int, dict[str, Any]]:
        made_s = time.monotonic() - began
        return client.call("PUT", "/survey/sent", {**survey, **plain(sent), "made_s": made_s})

    for _ in range(client.endpoints - 1):
        with suppress(LinkError):
            return put()
    return put()


class Surveys:
    """Answers the ledger's requests; `run` until closed, all other methods from any thread."""

    def __init__(self, look: Look, call: Call, backoff: Callable[[], Backoff]) -> None:
        self._look = look
        self._call = call
        self._backoff = backoff
        self._changed = threading.Condition()
        self._asked: SurveyRequest | None = None  # the newest request
        self._open = False  # whether it is not answered yet
        self._closed = False

    def got(self, epoch: int | None) -> str | None:
        """The token of the newest request, if it is of this epoch, to acknowledge it."""
        return self._asked.token if self._asked and self._asked.epoch == epoch else None

    def want(self, wanted: SurveyWanted | None, epoch: int | None) -> None:
        """Take the request from the answer to a poll, if there is one."""
        if wanted is None or epoch is None:
            return
        asked = SurveyRequest(wanted.token, epoch, wanted.digest)
        with self._changed:
            if asked.token != self.got(epoch):
                self._asked, self._open = asked, True
                self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def run(self) -> None:
        """Answer until closed."""
        while (asked := self._next()) is not None:
            try:
                self._answer(asked)
            except Stopping:
                return
            except Exception:  # noqa: BLE001 - a fault here must not end the line
                _LOG.exception("survey_failed", epoch=asked.epoch)

    def _next(self) -> SurveyRequest | None:
        with self._changed:
            self._changed.wait_for(lambda: self._open or self._closed)
            self._open = False
            return None if self._closed else self._asked

    def _answer(self, asked: SurveyRequest) -> None:
        survey = self._look(asked.epoch)
        digest = survey.digest()
        same = plain(SurveyAnswer(token=asked.token, epoch=asked.epoch, digest=digest))
        whole = {**plain(survey), **same}
        answer = same if digest == asked.digest else whole
        status, reply = self._send(asked, answer)
        if reply.get("again") is True and answer is not whole:  # the ledger lost it meanwhile
            status, reply = self._send(asked, whole)
        if status not in (HTTPStatus.OK, HTTPStatus.CONFLICT):  # 409: another epoch, or outdated
            _LOG.error("survey_refused", status=status, code=reply.get("code"))
        elif survey.blind:
            _LOG.warning("survey_blind", parts=survey.blind, why=survey.why_blind)

    def _send(self, asked: SurveyRequest, answer: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """The ledger's answer, after any number of attempts while the request is the newest."""
        backoff = self._backoff()
        while True:
            try:
                return self._call("PUT", "/survey", answer)
            except LinkError as error:
                _LOG.warning("survey_not_sent", why=str(error))
                with self._changed:
                    self._changed.wait_for(lambda: self._over(asked), backoff.next_s())
                    if self._over(asked):
                        return HTTPStatus.CONFLICT, {}

    def _over(self, asked: SurveyRequest) -> bool:
        return self._closed or self._asked is not asked
