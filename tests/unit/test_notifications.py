"""What Nova tells is read by its types, kept by server, bounded, and believed of no one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from copy import deepcopy
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from host_agent.shared.platform.settings import ConfigError
from ledger.config import Observe
from ledger.nova_beside import notifications
from ledger.nova_beside.notifications import Bus, Notices, read
from tests.doubles.nova_notifications import PROJECT, USER, payload
from tests.doubles.simulated_nova import Mapping, Server

S, V, W = (str(UUID(int=n)) for n in range(1, 4))
SERVER = Server(S, "db", "hv1", mappings=[Mapping(V, "", "/dev/vda"), Mapping(W, "", "/dev/vdb")])
ATTACHED, AT = "instance.volume_attach.end", "2026-11-28 12:00:31.250000"


def test_what_nova_34_sends_is_read() -> None:
    server_id, notice = read(ATTACHED, AT, payload(SERVER, W))
    assert (server_id, notice.volume_id, notice.boot_indexes) == (S, W, {W: 1})
    assert notice.told.at == "2026-11-28T12:00:31.250000+00:00", "it is UTC, and does not say so"
    assert (notice.told.user_id, notice.told.project_id) == (USER, PROJECT)
    assert notice.told.request_id == "req-5b6c791d-5709-4f36-8fbe-c3e02869e35d"
    without = payload(SERVER)
    for name in ("block_devices", "request_id", "action_initiator_user"):
        del without["nova_object.data"][name]
    assert read("instance.update", AT, without)[1].boot_indexes == {}


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    items: Any = enumerate(value) if isinstance(value, list) else ()
    for key, each in value.items() if isinstance(value, dict) else items:
        yield from places(each, (*path, key))


def with_other(value: Any, path: tuple[Any, ...], other: Any) -> Any:
    if not path:
        return other
    changed = deepcopy(value)
    at = changed
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = other
    return changed


SENT = {"event": ATTACHED, "at": AT, "payload": payload(SERVER, W)}
JUNK = st.one_of(
    st.none(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.just("\x1b[2J" * 1000),
    st.just("9999-12-31T23:59:59-23:59"),
    st.just("0001-01-01T00:00:00+23:59"),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=3),
)


@given(path=st.sampled_from(list(places(SENT))[1:]), junk=JUNK)
def test_whatever_is_sent_is_taken_or_refused(path: tuple[Any, ...], junk: Any) -> None:
    """No server is looked at that is no id, and nothing is raised."""
    sent, notices = with_other(SENT, path, junk), Notices()
    notices.hear(sent["event"], sent["at"], sent["payload"])
    assert sum(counts(notices).values()) == 1
    assert notices.take(0.0) in {None, S}


def counts(notices: Notices) -> dict[str, float]:
    [family] = notices.counted.collect()
    samples = [each for each in family.samples if each.name.endswith("_total")]
    return {each.labels["outcome"]: each.value for each in samples}


@pytest.mark.parametrize(
    "changed",
    [
        {"uuid": "../../etc/passwd"},
        {"uuid": f"{S}\n"},
        {"uuid": None},
        {"volume_id": 7},
        {"request_id": "req \x1b[2J"},
        {"action_initiator_user": "u" * 256},
        {"block_devices": payload(SERVER)["nova_object.data"]["block_devices"] * 501},
    ],
    ids=str,
)
def test_what_nova_does_not_send_is_refused_in_words(
    changed: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    notices = Notices()
    notices.hear(ATTACHED, AT, payload(SERVER, **{"volume_id": V, **changed}))
    assert counts(notices) == {"refused": 1}
    assert notices.take(0.0) is None
    assert "nova_object.data" in caplog.text


def told(notices: Notices, server_id: str, number: int = 0) -> None:
    at = f"2026-11-28 12:00:{number:02}"
    notices.hear(ATTACHED, at, payload(Server(server_id, "vm", "hv1"), V))


def test_a_flood_of_one_server_is_one_look() -> None:
    notices = Notices()
    for number in range(50):
        told(notices, S, number)
    assert notices.take(0.0) == S
    assert notices.take(0.0) is None
    assert len(notices.of(S)) == notifications.NOTICES_MAX
    assert notices.of(S)[-1].told.at.startswith("2026-11-28T12:00:49"), "the newest are kept"


def test_who_has_waited_longest_is_first_whoever_is_told_of_again_and_again() -> None:
    notices, other = Notices(), str(uuid4())
    told(notices, S)
    told(notices, other)
    assert notices.take(0.0) == S
    told(notices, S)
    assert notices.take(0.0) == other
    assert notices.take(0.0) == S


def test_so_many_servers_wait_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifications, "SERVERS_MAX", 3)
    notices = Notices()
    ids = [str(uuid4()) for _ in range(5)]
    for each in ids:
        told(notices, each)
    assert [notices.take(0.0) for _ in range(4)] == [*ids[:3], None]
    assert counts(notices) == {"taken": 3, "dropped": 2}


def test_who_asks_just_after_the_end_does_not_wait() -> None:
    """Else a service that stops in that moment stays until the next look at everything."""
    notices = Notices()
    notices.close()
    asking = threading.Thread(target=notices.take, args=(3_600.0,), daemon=True)
    asking.start()
    asking.join(30.0)
    assert not asking.is_alive()


def test_a_look_at_everything_answers_for_what_was_told_before_it() -> None:
    notices, later, unseen = Notices(), str(uuid4()), str(uuid4())
    told(notices, S)
    told(notices, unseen)
    told(notices, later)
    mark = notices.mark()
    told(notices, later, 1)
    notices.forget(mark, {unseen})
    assert notices.of(S) == []
    assert [notices.take(0.0) for _ in range(3)] == [unseen, later, None]


@pytest.mark.parametrize("url", ["nonsense://host", "rabbit://host:x/", "://"])
def test_a_bus_that_nobody_knows_is_refused_at_the_start(url: str) -> None:
    with pytest.raises(ConfigError, match=r"observe\.notifications"):
        Bus(url, "pool", print)


def test_who_does_not_look_has_nothing_to_hear() -> None:
    with pytest.raises(ValueError, match="a reason to look"):
        Observe(notifications="rabbit://host/")
    for url in ("", "rabbit.internal:5672"):
        with pytest.raises(ValueError, match="transport URL"):
            Observe(auth={}, notifications=url)
