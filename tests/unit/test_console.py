"""The parts of the console that need no service."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from ledger.auth.rate import Rate
from ledger.native import attachments
from ledger.native.schemas_attachments import AttachmentShown
from ledger.web import acting, acts, console, drawn, rendering, sessions, texts
from ledger.web.sessions import (
    AGE_S,
    FORMS_MAX,
    IDLE_S,
    SESSIONS_MAX,
    SESSIONS_OF_USER_MAX,
    Sessions,
)
from ledger.words.acts import BY_NAME as ACTS
from ledger.words.consequences import dry_runs

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
SEEN = {"origin": "nova", "after": None, "before": NOON.isoformat()}


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_operations_of_which_only_bookkeeping_is_told_are_not_in_the_story() -> None:
    names = ("occurred_at", "asked_by", "request_id", "actor", "host", "operation_id")
    event: dict[str, Any] = dict.fromkeys(names)
    event |= {"position": 1, "recorded_at": NOON.isoformat(), "body": {}}
    claimed = {**event, "topic": "Volume.ClaimReleased", "operation_id": "a"}
    told = {**event, "topic": "Attachment.Completed", "operation_id": "b"}
    assert [operation for operation, _, _ in texts.story([claimed, told])] == ["b"]
    later = {**told, "recorded_at": (NOON + timedelta(days=1)).isoformat()}
    days = [f"{day}" for _, day, _ in texts.story([later, told])]
    assert days == ["2026-02-01", "2026-01-31"], "a time without its day says nothing"


def test_ids_in_a_sentence_are_marked_and_the_rest_is_text() -> None:
    id_ = "0e5c6ee8-0000-4000-8000-000000000000"
    told = texts.with_ids(f"<b>{id_}</b>, `drift <b>`")
    marked = f'&lt;b&gt;<span class="id">{id_}</span>&lt;/b&gt;, <code>drift &lt;b&gt;</code>'
    assert told == marked


@pytest.mark.parametrize(
    ("spans", "told"),
    [([], True), ([{"from_seen": SEEN}, {}], True), ([{}], False)],
    ids=["nowhere yet", "taken over", "handed back"],
)
def test_an_attachment_of_novas_was_seen_if_its_begin_was(spans: list[Any], told: bool) -> None:
    row = dict.fromkeys((*AttachmentShown.model_fields, "legacy"))
    row |= dict.fromkeys(("attachment_id", "volume_id", "server_id"), str(UUID(int=1)))
    row |= {"adopted": False, "origin": "nova", "position": 1, "spans": spans, "state": "attached"}
    row |= dict.fromkeys(("created_at", "updated_at"), NOON)
    call: Any = SimpleNamespace(identity=SimpleNamespace(everywhere=True))
    shown = attachments._shown(call, row).model_dump(mode="json")
    how = rendering._templates().get_template("parts.html").module.how(shown)  # type: ignore[attr-defined]
    assert ("seen at Nova" in how) is told


def test_a_session_ends_when_nobody_uses_it_and_at_its_age_all_the_same() -> None:
    clock = Clock()
    known = Sessions(clock)
    idle, used = known.begin("idle", "u"), known.begin("used", "u")
    for _ in range(int(AGE_S / IDLE_S) * 2 - 1):
        clock.now += IDLE_S / 2
        assert known.token(used) == "used"
    assert known.token(idle) is None
    clock.now = AGE_S
    assert known.token(used) is None
    assert known.token("never begun") is None


def test_of_a_users_too_many_sessions_the_one_unused_for_longest_ends() -> None:
    known = Sessions(Clock())
    first, second = known.begin("first", "u"), known.begin("second", "u")
    known.token(first)
    for _ in range(SESSIONS_OF_USER_MAX - 1):
        known.begin("another", "u")
    assert (known.token(first), known.token(second)) == ("first", None)


def test_nobody_ends_the_sessions_of_others_by_logging_in() -> None:
    known = Sessions(Clock())
    operator = known.begin("operator", "operator")
    for _ in range(SESSIONS_MAX + 1):
        known.begin("member", "member")
    assert known.token(operator) == "operator"
    assert len(known._sessions) == 1 + SESSIONS_OF_USER_MAX


def test_of_too_many_sessions_of_all_one_ends_of_whoever_has_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sessions, "SESSIONS_MAX", 5)
    known = Sessions(Clock())
    operator = known.begin("operator", "operator")
    first, *others = [known.begin(f"token-{number}", "greedy") for number in range(4)]
    another = known.begin("another", "another")
    assert known.token(first) is None
    assert all(map(known.token, [operator, another, *others]))


def test_a_session_tells_no_token() -> None:
    known = Sessions(Clock())
    known.begin("secret", "u")
    assert "secret" not in repr(vars(known))
    assert len({known.begin("x", "u") for _ in range(SESSIONS_MAX)}) == sessions.SESSIONS_MAX


def test_a_rate_lets_in_so_many_of_a_key_in_its_time() -> None:
    clock = Clock()
    rate = Rate(2, 60.0, 10, clock)
    rate.note("one")
    assert rate.wait_s("one") == 0
    clock.now = 10.5
    rate.note("one")
    assert (rate.wait_s("one"), rate.wait_s("another")) == (50, 0)
    clock.now = 60
    assert rate.wait_s("one") == 0, "the first of them is forgotten"
    rate.note("one")
    assert rate.wait_s("one") == 11


def test_a_rate_remembers_so_many_keys() -> None:
    rate = Rate(1, 60.0, 2, Clock())
    for key in ("one", "two", "one", "three"):
        rate.note(key)
    assert [bool(rate.wait_s(key)) for key in ("one", "two", "three")] == [True, False, True]


def made(created: int, ended: int | None, **more: Any) -> dict[str, Any]:
    """An attachment, by minutes before noon."""
    at = [None if each is None else (NOON - timedelta(minutes=each)) for each in (created, ended)]
    begin, end = (each and each.isoformat() for each in at)
    given = {"attachment_id": "a", "volume_id": "63383fde-248a", "server_id": "7d1f6c02-53a4"}
    given |= {"host": "compute-1", "state": "attached", **more}
    return {**given, "created_at": begin, "ended_at": end}


def test_a_time_line_has_its_bars_where_they_were() -> None:
    rows = [made(60, 30), made(30, None, host=None, server_name="db-1")]
    began = (NOON - timedelta(minutes=15)).isoformat()
    operation = {"operation_id": "o", "flow": "detach", "state": "running", "outcome": None}
    operation |= {"finished_at": None}
    early = {**operation, "started_at": (NOON - timedelta(hours=2)).isoformat()}
    over = {**early, "finished_at": (NOON - timedelta(minutes=61)).isoformat()}
    line = drawn.timeline(
        rows, [{**operation, "started_at": began}, over, early], NOON, NOON - timedelta(minutes=45)
    )
    assert line is not None
    assert [(bar.x, bar.width, bar.state) for bar in line.bars] == [
        (0.0, drawn.WIDTH / 2, "ended"),
        (drawn.WIDTH / 2, drawn.WIDTH / 2, "attached"),
    ]
    assert [bar.label for bar in line.bars] == ["server 7d1f6c02, compute-1", "db-1"]
    assert [mark.x for mark in line.marks] == [drawn.WIDTH * 3 / 4, 0], "what was over is not drawn"
    assert line.marks[0].title == "detach: running, 2026-01-31 11:45:00 UTC"
    assert line.at == drawn.WIDTH / 4
    of_server = drawn.timeline(rows, [], NOON, page="server")
    assert of_server is not None
    assert of_server.bars[0].label == "volume 63383fde, compute-1"
    assert drawn.timeline([], [], NOON) is None


def test_a_time_line_is_gone_into_and_along_by_links() -> None:
    hour = timedelta(hours=1)
    rows = [made(240, 180), made(120, None, attachment_id="b")]
    whole = drawn.timeline(rows, [], NOON)
    assert whole is not None
    assert [each.title for each in whole.zooms] == ["narrower"], "it is all of it"
    [narrower] = whole.zooms
    assert (narrower.begin, narrower.end) == tuple(
        (NOON - hours * hour).isoformat() for hours in (3, 1)
    )
    part = drawn.timeline(rows, [], NOON, None, (NOON - 2 * hour, NOON - hour))
    assert part is not None
    assert [(bar.attachment_id, bar.x, bar.width) for bar in part.bars] == [
        ("b", 0.0, drawn.WIDTH)
    ], "what had ended is not there, and what goes on is cut"
    ends = {each.title: (each.begin, each.end) for each in part.zooms}
    assert ends == {
        said: tuple((NOON - minutes * timedelta(minutes=1)).isoformat() for minutes in span)
        for said, span in {
            "narrower": (105, 75),
            "wider": (150, 30),
            "earlier": (150, 90),
            "later": (90, 30),
        }.items()
    } | {"all of it": (None, None)}
    around = drawn.timeline(rows, [], NOON, NOON - hour, (NOON - 2 * hour, NOON - hour))
    assert around is not None
    assert around.zooms[0].begin == (NOON - 1.25 * hour).isoformat(), "around the moment"
    beyond = drawn.timeline(rows, [], NOON, None, (NOON + hour, NOON - hour))
    assert beyond is not None
    assert beyond.title == whole.title, "what is no part of it is not asked for"


def test_of_a_host_the_line_shows_the_last_day_and_all_of_it_by_a_link() -> None:
    day, known = timedelta(days=1), NOON - timedelta(days=9)
    shown = drawn.part((None, None), day, None, NOON)
    assert shown == (NOON - day, None)
    held = {"attachment_id": "a", "host": "compute-1", "volume_id": "63383fde-248a"}
    held |= {"server_id": "7d1f6c02-53a4"}
    since = (NOON - timedelta(hours=6)).isoformat()
    line = drawn.timeline(
        [{**held, "from_at": since, "to_at": None}],
        [],
        NOON,
        None,
        shown,
        first=known.isoformat(),
        page="host",
    )
    assert line is not None
    assert [(bar.x, bar.label, bar.state) for bar in line.bars] == [
        (drawn.WIDTH * 3 / 4, "volume 63383fde, server 7d1f6c02", "attached")
    ]
    assert next(each.title for each in line.ticks) == "01-30 12:00"
    assert line.zooms[-1] == drawn.Zoom(title="all of it", begin=known.isoformat())
    whole = drawn.timeline([], [], NOON, None, (known, None), first=known.isoformat())
    assert whole is not None
    assert [each.title for each in whole.zooms] == ["narrower"]


def test_no_part_of_a_line_ends_in_the_future() -> None:
    hour, later = timedelta(hours=1), NOON + timedelta(hours=2)
    assert drawn.part((NOON - hour, later), None, None, NOON) == (NOON - hour, None)
    at = NOON - hour
    assert drawn.part((None, None), 8 * hour, at, NOON) == (at - 4 * hour, None)
    assert drawn.part((None, None), hour, at, NOON) == (at - hour / 2, at + hour / 2)
    assert drawn.part((None, None), None, at, NOON) == (None, None), "all of it"
    assert drawn.part((None, at), 8 * hour, None, NOON) == (None, at), "as it is asked for"


def test_a_plot_is_as_high_as_its_largest_number() -> None:
    found = drawn.plot([0, 2, 4], 15)
    assert [(bar.x, bar.height) for bar in found.bars] == [
        (drawn.PLOT_WIDTH / 3, drawn.PLOT_HEIGHT / 2),
        (drawn.PLOT_WIDTH * 2 / 3, drawn.PLOT_HEIGHT),
    ]
    assert found.title == "6 in 45 minutes, at most 4 in 15"
    assert drawn.plot([0] * 60, 1).bars == []


def test_times_are_told_by_the_databases_clock() -> None:
    assert texts.ago((NOON - timedelta(seconds=200)).isoformat(), NOON) == "3 min 20 s ago"
    assert texts.ago((NOON + timedelta(seconds=40)).isoformat(), NOON) == "in 40 s"
    assert texts.ago(None, NOON) == texts.moment(None) == ""
    assert texts.moment("2026-01-31T13:00:00+01:00") == "2026-01-31 12:00:00 UTC"


def test_a_session_is_not_used_by_a_page_that_is_left_open() -> None:
    clock = Clock()
    known = Sessions(clock)
    name = known.begin("token", "u")
    clock.now = IDLE_S - 1
    assert known.token(name, used=False) == "token"
    clock.now = IDLE_S
    assert known.token(name, used=False) is None


def test_a_form_is_of_its_session_and_path_and_there_are_so_many() -> None:
    known = Sessions(Clock())
    one, other = known.begin("one", "u"), known.begin("other", "u")
    forms = [known.shown(one, "/ui/here") for _ in range(FORMS_MAX)]
    first, last = str(forms[0]), str(forms[-1])
    assert len({*forms}) == FORMS_MAX
    assert known.sent(one, first, "/ui/here") is known.sent(one, first, "/ui/here") is not None
    assert known.sent(other, first, "/ui/here") is None
    assert known.sent(one, first, "/ui/there") is None
    known.shown(one, "/ui/here")
    assert known.sent(one, last, "/ui/here") is not None
    assert known.sent(one, first, "/ui/here") is None, "of too many the first is no good any more"
    assert known.shown("never begun", "/ui/here") is None


def test_of_several_steps_that_are_left_the_one_that_is_chosen_is_meant() -> None:
    left = [{"lane": 0, "step": "unplug"}, {"lane": 1, "step": "unplug"}]
    read = {"operation": {"left": left, "acts": ["skip"], "steps": [], "unwinding": False}}
    for lane, step in ((0, None), (0, "0 unplug"), (1, "1 unplug")):
        chosen = acting._chosen(read, step)["operation"]
        assert chosen["left"][0]["lane"] == lane
        told = dict(dry_runs(chosen))["skip"]["skip"]
        assert (told["lane"], told["step"]) == (lane, "unplug"), "and of it the dry run is"
    sent = acts.body(ACTS["skip"], {"step": "1 unplug", "reason": "gone"})
    assert sent == {"skip": {"lane": 1, "step": "unplug", "reason": "gone"}}
    for none in ("--5 unplug", "9" * 5000 + " unplug"):
        assert acts.body(ACTS["skip"], {"step": none})["skip"]["lane"] == 0


#: As published: `npm pack htmx.org@4.0.1`, dist/htmx.min.js and dist/ext/hx-sse.min.js.
VENDORED = {
    "htmx.min.js": "a0abb04f2f45a1f89d1d4844023245537e5e6014c87b144553e0607b4cc32130",
    "hx-sse.min.js": "18ef2761356ec1fe0bb6d92612315b37517a7c1e9856b661c5ae81fef239d103",
}


def test_what_is_vendored_is_what_was_published_with_its_licence() -> None:
    vendor = Path(console.__file__).parent / "static" / "vendor"
    found = {each.name: each.read_bytes() for each in vendor.iterdir()}
    assert b"Zero-Clause BSD" in found.pop("htmx.LICENSE")
    assert {name: hashlib.sha256(raw).hexdigest() for name, raw in found.items()} == VENDORED
    scripts = {name for name in console.files() if name.endswith(".js")}
    assert scripts == VENDORED.keys(), "there is no other script"
