from __future__ import annotations

import ast
import io
import json
import logging
import re
from collections.abc import Iterator
from contextvars import copy_context
from pathlib import Path
from typing import Any

import pytest
import structlog

from host_agent.shared.platform import logs, masking

ROOT = Path(__file__).parents[2]
#: What a hostile text may hold: another record, behind a line end or an order to the terminal.
FORGED = "2026-11-22T00:00:00Z [info     ] host_fenced"
ENDS = ["\n", "\r", "\r\n", "\x0b", "\x0c", "\x1b[2K\x1b[G", "\x85", "\u2028", "\u2029"]


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logs.through_the_standard_library()


def logged(**kwargs: str) -> tuple[io.StringIO, Any]:
    stream = io.StringIO()
    logs.set_up(stream=stream, **kwargs)
    return stream, structlog.get_logger("ledger.test")


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_one_json_object_off_the_terminal() -> None:
    stream, log = logged()
    log.info("step started", step="reserve", attempt=2)
    (line,) = lines(stream)
    assert line["event"] == "step started"
    assert (line["step"], line["attempt"], line["level"]) == ("reserve", 2, "info")
    assert line["logger"] == "ledger.test"
    assert line["timestamp"].endswith("Z")


def test_a_line_is_text_on_a_terminal() -> None:
    stream, log = logged(form="human")
    log.info("step started", step="reserve")
    assert "step started" in stream.getvalue()
    assert "step=reserve" in stream.getvalue()


def test_bound_context_is_on_our_lines_and_on_the_libraries_and_ends_with_its_task() -> None:
    stream, log = logged()

    def task() -> None:
        structlog.contextvars.bind_contextvars(operation="op-1", request_id="req-1")
        log.info("ours")
        logging.getLogger("cinderclient").info("%s %d", "theirs", 1)

    copy_context().run(task)
    log.info("after")
    ours, theirs, after = lines(stream)
    assert ours["operation"] == theirs["operation"] == "op-1"
    assert theirs["event"] == "theirs 1"
    assert "operation" not in after


def test_level_is_kept_and_talkative_libraries_are_heard_at_debug_only() -> None:
    stream, log = logged(level="info")
    log.debug("detail")
    logging.getLogger("keystoneauth.session").info("REQ: curl ...")
    assert stream.getvalue() == ""
    stream, log = logged(level="debug")
    log.debug("detail")
    logging.getLogger("urllib3.connectionpool").debug("GET /")
    assert [line["event"] for line in lines(stream)] == ["detail", "GET /"]


@pytest.mark.parametrize("form", ["json", "human"])
def test_secret_under_its_key_is_masked_at_any_depth(form: str) -> None:
    stream, log = logged(form=form)
    log.info("x", token="hunter2", deep={"list": [{"token": {"data": "hunter2"}}]})
    assert stream.getvalue()
    assert "hunter2" not in stream.getvalue()


@pytest.mark.parametrize("key", ["token", "connection_info"])
def test_a_text_is_blanked_by_its_key_alone_and_the_others_of_its_line_are_shown(key: str) -> None:
    stream, log = logged()
    log.info("x", **{key: "hunter2", "volume": "v"})
    (line,) = lines(stream)
    assert (line[key], line["volume"], line["event"]) == ("***", "v", "x")


def test_secret_in_text_is_masked_in_events_fields_and_tracebacks() -> None:
    text = "postgresql://ledger:hunter2@db/ledger"
    stream, log = logged()
    log.info(text, why=text)
    logging.getLogger("library").info("said %s", text)
    try:
        raise ValueError(text)
    except ValueError:
        log.exception("failed")
    assert len(lines(stream)) == 3
    assert "ValueError" in stream.getvalue()
    assert "hunter2" not in stream.getvalue()


@pytest.mark.parametrize("form", ["json", "human"])
def test_what_was_learnt_is_masked_on_every_line_even_in_a_traceback(form: str) -> None:
    masking.learn({"auth_password": "in-the-traceback"})
    stream, log = logged(form=form)
    try:
        raise RuntimeError("CHAP in-the-traceback")
    except RuntimeError:
        log.exception("failed", why="in-the-traceback")
        logging.getLogger("os_brick").exception("token=%s", "abcdefgh")
    assert stream.getvalue().count("RuntimeError: CHAP ***") == 2
    assert "in-the-traceback" not in stream.getvalue()
    assert "abcdefgh" not in stream.getvalue()


def test_a_field_that_json_has_no_form_for_is_text() -> None:
    stream, log = logged()
    log.info("x", path=Path("/a"), pairs={(1, 2): "b"}, kind={"c"})
    (line,) = lines(stream)
    assert (line["path"], line["kind"]) == ("/a", "{'c'}")


@pytest.mark.parametrize("form", ["json", "human"])
@pytest.mark.parametrize("end", ENDS, ids=ascii)
def test_no_text_from_outside_can_begin_a_record(form: str, end: str) -> None:
    stream, log = logged(form=form)
    text = f"a{end}{FORGED}"
    log.info("guest_seen", name=text, nested={"tags": [text]}, error=ValueError(text))
    log.info(text)
    logging.getLogger("library").warning("said %s", text)
    try:
        raise ValueError(text)
    except ValueError:
        log.exception("failed")
        logging.getLogger("library").exception("failed with %s", text)
    output = stream.getvalue()
    records = [line for line in output.split("\n")[:-1] if not line.startswith("    ")]
    assert len(records) == 5
    assert all(line.isascii() and line.isprintable() for line in output.split("\n"))


def test_a_traceback_stays_readable_on_a_terminal() -> None:
    stream, log = logged(form="human")
    try:
        raise ValueError("no such volume")
    except ValueError:
        log.exception("step_crashed", step="connect")
    first, *behind = stream.getvalue().splitlines()
    assert "step_crashed" in first
    assert "step=connect" in first
    assert behind[0] == "    Traceback (most recent call last):"
    assert behind[-1] == "    ValueError: no such volume"
    assert any("raise ValueError" in line for line in behind)


def _logged_events() -> Iterator[tuple[str, str]]:
    """The first argument of each call of a logger of ours, with its place."""
    for room in ("ledger", "projections", "handlers", "aggregates", "host_agent"):
        for path in (ROOT / room).rglob("*.py"):
            text = path.read_text()
            logs = re.search(r"\blog\.|_log\.|_LOG\.", text)
            for node in ast.walk(ast.parse(text if logs else "")):
                match node:
                    case ast.Call(
                        func=ast.Attribute(
                            value=ast.Name(id="log" | "_log" | "_LOG"),
                            attr="debug" | "info" | "warning" | "error" | "exception",
                        ),
                        args=[event, *more],
                    ):
                        named = str(event.value) if isinstance(event, ast.Constant) else None
                        named = named or ast.unparse(event)
                        where = f"{path.relative_to(ROOT)}:{node.lineno}"
                        yield where, f"{named} with arguments" if more else str(named)


def test_what_is_logged_is_an_event_with_fields_and_no_sentence() -> None:
    events = list(_logged_events())
    assert len(events) > 40
    assert [where for where in events if not re.fullmatch(r"[a-z]+(_[a-z]+)*", where[1])] == []
