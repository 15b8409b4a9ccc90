"""Looks of different width, one after another, in any order: each class of drift, each width.

What one look has found, another one confirms that would have found it, too; one that would not
have found it leaves it as it is; and it is over once it is gone, and not before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any
from uuid import UUID, uuid4

import pytest

from aggregates.volume import Volume
from handlers.drift.classes import BY_NAME, CLASSES
from handlers.drift.rows import ServerRow
from host_agent.shared.contract.messages import PowerState
from ledger.words.consequences import second_look
from ledger.words.sentences import sentence
from projections.reads.surveys import BlockingSurveyReads
from tests.store.following import wait_until
from tests.store.looking import HOST, SILENT_S, Cloud
from tests.store.planted import BOTH, HERE, OTHER, PLANTS, THERE, Planted, shown_as
from tests.world import CONTEXT

#: What a look is at: everything, the host of the servers, another host, each server, each volume.
WIDTHS = ("all", "host", "other", "server", "volume")
ORDERS = [*product(WIDTHS, WIDTHS)]
Found = dict[str, dict[str, Any]]


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ledger.reconcile.hosts.ANSWER_S", 5.0)
    monkeypatch.setattr("ledger.reconcile.hosts.LOOK_AGAIN_S", 0.01)


@pytest.fixture
def cloud(cloud: Cloud) -> Iterator[Cloud]:
    for host in (HOST, OTHER):
        cloud.host(host)
    with cloud.answering(HOST, OTHER):
        yield cloud


def look(cloud: Cloud, width: str, planted: Sequence[Planted]) -> None:
    """One look, or one at each server or volume."""
    parts: dict[str, list[dict[str, str]]] = {
        "all": [{}],
        "host": [{"host": HOST}],
        "other": [{"host": OTHER}],
    }
    named = [getattr(each, width, None) for each in planted]
    for scope in parts.get(width) or [{width: which} for which in named if which]:
        assert cloud.look(**scope).outcome == "completed"


def findings(cloud: Cloud) -> Found:
    """By id."""
    cloud.projected()
    rows = cloud.db.execute("SELECT * FROM findings").fetchall()
    return {str(row["finding_id"]): row for row in rows}


def sees(width: str, planted: Planted, name: str) -> bool:
    """Whether such a look asks all by whose word the difference is one of this class."""
    if width in {"host", "other"}:
        return planted.classes[name] == (HERE if width == "host" else THERE)
    if width == "all":
        return name != "attachment_mode_differs"  # which neither of Cinder's lists tells
    of_server = BY_NAME[name].row is ServerRow
    return getattr(planted, width) is not None and not (width == "volume" and of_server)


def count(planted: Sequence[Planted], *are: Callable[[Planted, str], bool]) -> Counter[str]:
    """Of how many planted differences all of this is so, by class."""
    pairs = ((each, name) for each in planted for name in each.classes)
    return Counter(name for each, name in pairs if all(is_so(each, name) for is_so in are))


def finds(width: str, planted: Planted, name: str) -> bool:
    """The same, as long as nothing is found, and so only the hosts of a volume are asked for it."""
    return sees(width, planted, name) and not (width == "volume" and name in _ELSEWHERE)


_ELSEWHERE = {"disk_unknown", "disk_unlabelled", "connection_left", "record_left", "secret_left"}


def classes(rows: Iterable[dict[str, Any]], *states: str) -> Counter[str]:
    return Counter(row["drift_class"] for row in rows if row["state"] in states)


@pytest.fixture
def planted(cloud: Cloud) -> list[Planted]:
    """One difference of each class, at least."""
    return [plant(cloud) for plant in PLANTS]


def test_each_class_that_looks_find_is_planted(planted: list[Planted]) -> None:
    names = {name for each in planted for name in each.classes}
    assert names == {each.name for each in CLASSES if each.row is not None}


@pytest.mark.parametrize(("first", "second"), ORDERS)
def test_a_look_confirms_what_it_sees_of_what_another_found_and_leaves_the_rest(
    cloud: Cloud, planted: list[Planted], first: str, second: str
) -> None:
    finds_first, sees_it = partial(finds, first), partial(sees, second)
    look(cloud, first, planted)
    found = findings(cloud)
    suspected, expected = classes(found.values(), "suspected"), count(planted, finds_first)
    assert (expected == suspected) if first == "all" else (expected <= suspected)
    cloud.later()
    look(cloud, second, planted)
    after = findings(cloud)
    assert {row["state"] for row in after.values()} <= {"suspected", "confirmed"}
    for id_, row in found.items():
        assert holds(row["differs"], after[id_]["differs"]), row["drift_class"]
    assert classes(after.values(), "confirmed") >= count(planted, finds_first, sees_it)
    known = [after[id_] for id_ in found]
    assert classes(known, "confirmed") <= classes(found.values(), "suspected")


def holds(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Whether it is the same, or the same and what another host shows."""
    if not isinstance(before.get("host"), list):
        return before == after
    told = [pair for pair in after["host"] if pair in before["host"]]
    return {**after, "host": told} == before


@pytest.mark.parametrize("first", WIDTHS)
def test_the_look_that_is_shown_under_next_confirms(
    cloud: Cloud, planted: list[Planted], first: str
) -> None:
    look(cloud, first, planted)
    found = findings(cloud)
    cloud.later()
    for scope in {tuple(second_look(row).items()) for row in found.values()}:
        assert scope, "each has one"
        cloud.look(**dict(scope))
    after = findings(cloud)
    assert [row for id_, row in after.items() if id_ in found and row["state"] != "confirmed"] == []


@pytest.mark.parametrize("width", WIDTHS)
def test_what_is_gone_is_over_once_all_by_whose_word_it_was_found_are_asked(
    cloud: Cloud, planted: list[Planted], width: str
) -> None:
    look(cloud, "all", planted)
    cloud.projected()
    for each in planted:
        each.end()
    look(cloud, width, planted)
    ended = classes(findings(cloud).values(), "over")
    asked = count(planted, partial(sees, "all"), partial(sees, width))
    assert (ended - asked, asked - ended) == (Counter(), Counter())
    look(cloud, "all", planted)
    assert {row["state"] for row in findings(cloud).values()} == {"over"}


# --- servers that several hosts show -------------------------------------------------------------


def guests(name: str, cloud: Cloud, **shown: Any) -> Planted:
    """`here`, `there`, `ledger`: as tests.store.planted has them."""
    return shown_as({name: BOTH}, **shown)(cloud)


def twice(cloud: Cloud) -> Planted:
    return guests("guest_twice", cloud, here="running", there="running")


def surveyed(cloud: Cloud, host: str) -> None:
    """Somebody asks the host, and no look is made of it."""
    cloud.projected()
    [token] = BlockingSurveyReads(cloud.db).want([host], silent_after_s=SILENT_S).values()
    asked = "SELECT FROM surveys WHERE token = %s"
    wait_until(lambda: bool(cloud.db.execute(asked, [token]).fetchall()))


@pytest.mark.parametrize("how", ["silent", "blind"])
def test_a_host_that_does_not_tell_any_more_keeps_its_word(cloud: Cloud, how: str) -> None:
    twice(cloud)
    cloud.look()
    before = findings(cloud)
    cloud.later()
    if how == "silent":
        change = "UPDATE host_contact SET seen_at = now() - interval '1 hour' WHERE host = %s"
        cloud.db.execute(change, [OTHER])
    else:
        cloud.blind[OTHER] = ("guests",)
    cloud.guests[OTHER].clear()
    assert OTHER in cloud.look().unknown
    assert findings(cloud).keys() == before.keys()
    assert set(cloud.states().values()) == {"suspected"}


def test_those_that_tell_confirm_and_who_does_not_keeps_its_word(cloud: Cloud) -> None:
    guests("guest_of_deleted", cloud, here="shutdown", there="shutdown", ledger={"deleted": True})
    cloud.look()
    cloud.later()
    cloud.blind[OTHER] = ("guests",)
    cloud.look()
    [row] = findings(cloud).values()
    assert row["state"] == "confirmed"
    assert row["differs"]["host"] == [[HOST, "shutdown"], [OTHER, "shutdown"]]


def test_a_server_is_in_the_same_life_if_each_of_its_hosts_is(cloud: Cloud) -> None:
    planted = twice(cloud)
    cloud.look()
    cloud.later()
    cloud.boots[OTHER] = "another"
    cloud.look(server=str(planted.server))
    assert set(cloud.states().values()) == {"suspected"}
    cloud.later()
    cloud.look()
    assert set(cloud.states().values()) == {"confirmed"}


def test_an_older_survey_opens_a_finding_and_says_how_old_it_is_but_confirms_nothing(
    cloud: Cloud,
) -> None:
    twice(cloud)
    surveyed(cloud, OTHER)
    cloud.later()
    assert cloud.look(host=HOST).found == {"guest_twice": 1, "guest_elsewhere": 1}
    [id_] = [id_ for id_, row in findings(cloud).items() if row["drift_class"] == "guest_twice"]
    [found] = cloud.ledger.events.get(UUID(id_))
    assert found.seen_on[HOST]["age_s"] == 0.0  # type: ignore[attr-defined]
    assert found.seen_on[OTHER]["age_s"] >= 120  # type: ignore[attr-defined]
    body = {"drift_class": "guest_twice", "seen_on": found.seen_on}  # type: ignore[attr-defined]
    assert f"by what {OTHER} showed 12" in sentence("Finding.DriftFound", body)
    cloud.later()
    cloud.look(host=HOST)
    assert set(cloud.states().values()) == {"suspected"}, "it is the same survey"
    surveyed(cloud, OTHER)
    cloud.look(host=HOST)
    assert set(cloud.states().values()) == {"confirmed"}


def test_an_older_survey_tells_nothing_of_a_server_to_which_something_has_happened_since(
    cloud: Cloud,
) -> None:
    planted = twice(cloud)
    surveyed(cloud, OTHER)
    happened = Volume(uuid4())
    happened.record(Volume.VolumeMade, server_id=str(planted.server), mark="m")
    cloud.ledger.save(happened, context=CONTEXT)
    assert cloud.look(host=HOST).found == {}
    assert cloud.look(server=str(planted.server)).found == {"guest_twice": 1, "guest_elsewhere": 1}


def test_an_older_survey_neither_changes_a_finding_nor_ends_it(cloud: Cloud) -> None:
    twice(cloud)
    cloud.look()
    for power in ("paused", None):
        cloud.guests[OTHER] = [
            replace(each, power_state=PowerState(power)) for each in cloud.guests[OTHER] if power
        ]
        surveyed(cloud, OTHER)
        cloud.later()
        cloud.look(host=HOST)
        assert set(cloud.states().values()) == {"suspected"}
        shown = {tuple(map(tuple, row["differs"]["host"])) for row in findings(cloud).values()}
        both = ((HOST, "running"), (OTHER, "running"))
        assert shown == {both, both[1:]}


def test_a_look_that_hears_more_hosts_confirms_what_both_saw_and_adds_the_others(
    cloud: Cloud,
) -> None:
    guests("guest_of_deleted", cloud, here="shutdown", there="shutdown", ledger={"deleted": True})
    cloud.look(host=OTHER)
    [row] = findings(cloud).values()
    assert row["differs"]["host"] == [[OTHER, "shutdown"]]
    for _ in range(2):
        cloud.later()
        cloud.look()
        [row] = findings(cloud).values()
        assert row["state"] == "confirmed"
        assert row["differs"]["host"] == [[HOST, "shutdown"], [OTHER, "shutdown"]]


@pytest.mark.parametrize("scope", [{}, {"host": OTHER}])
def test_a_guest_that_is_elsewhere_need_not_be_defined_there(
    cloud: Cloud, scope: dict[str, str]
) -> None:
    """At its own host alone it is asked for, by each width of look."""
    shown_as({"guest_elsewhere": THERE}, here="running", there="shutdown")(cloud)
    cloud.guests[OTHER] = [replace(each, defined=False) for each in cloud.guests[OTHER]]
    assert cloud.look(**scope).found == {"guest_elsewhere": 1}


def test_a_look_at_a_part_ends_nothing_of_what_is_beside_it(cloud: Cloud) -> None:
    """Neither what is found of other servers of its host, nor what is over there."""
    planted = [plant(cloud) for plant in PLANTS]
    cloud.look()
    sound = cloud.attached()
    cloud.shows(sound)
    for each in planted:
        each.end()
    for scope in ({"server": str(sound.instance)}, {"volume": sound.volume_id}):
        cloud.look(**scope)
        assert {row["state"] for row in findings(cloud).values()} == {"suspected"}
