"""What each event makes true of a host, and when it is suspect no more."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from aggregates import errors
from aggregates.base import About, Seen
from aggregates.host import Host
from tests.unit.test_aggregate_facts import ID, facts


def test_a_host_is_what_its_events_say() -> None:
    host = Host(ID)
    host.register("h", 4, {"tag": True}, {"host": "h"})
    assert facts(host, "name", "service_version", "capabilities", "connector") == {
        "name": "h",
        "service_version": 4,
        "capabilities": {"tag": True},
        "connector": {"host": "h"},
    }
    host.disable("rack 3")
    host.disable("rack 3")
    assert (host.version, host.why_disabled) == (2, "it is disabled (rack 3)")
    host.disable(None)
    assert (host.version, host.why_disabled) == (3, "it is disabled (no reason given)")
    host.enable()
    host.enable()
    assert (host.version, host.disabled, host.disabled_reason) == (4, False, None)
    host.unfence("never was")
    host.fence("no power", "BMC")
    assert facts(host, "version", "epoch", "fenced", "suspect", "fence_reason") == {
        "version": 5,
        "epoch": 1,
        "fenced": True,
        "suspect": True,
        "fence_reason": "no power (BMC)",
    }
    assert host.about() == About(host="h")


@pytest.mark.parametrize(
    ("guests", "attachments", "all_decided", "fenced", "clears"),
    [
        ([], [], True, False, True),
        (["g"], [], True, False, False),
        ([], ["a"], True, False, False),
        ([], [], False, False, False),
        ([], [], True, True, False),
    ],
)
def test_a_host_is_suspect_until_it_holds_nothing_of_others(
    guests: list[str], attachments: list[str], all_decided: bool, fenced: bool, clears: bool
) -> None:
    host = Host(ID)
    host.fence("no power", "BMC")
    host.report_leftovers(["x"], ["y"], all_decided=True)
    if not fenced:
        host.unfence("repaired")
    host.report_leftovers(guests, attachments, all_decided=all_decided)
    assert host.suspect is not clears
    assert host.leftovers == (tuple(guests), tuple(attachments))
    version = host.version
    host.report_leftovers(guests, attachments, all_decided=all_decided)
    assert host.version == version, "again it says nothing new"


def test_after_a_restore_a_host_is_in_doubt_until_it_is_vouched_for_or_fenced() -> None:
    """No fence of before counts; one of after it does, and frees nothing by the log alone."""
    host = Host(ID)
    host.fence("no power", "BMC")
    host.report_leftovers(["x"], ["y"], all_decided=True)
    host.restore(1, 7, "disk lost")
    assert facts(host, "epoch", "restored", "fenced", "suspect", "leftovers", "in_doubt") == {
        "epoch": 2,
        "restored": 2,
        "fenced": False,
        "suspect": False,
        "leftovers": ((), ()),
        "in_doubt": True,
    }
    host.fence("gone", "sold")
    assert facts(host, "epoch", "restored", "suspect", "unvouched", "in_doubt") == {
        "epoch": 3,
        "restored": 2,
        "suspect": False,
        "unvouched": True,
        "in_doubt": False,
    }
    host.unfence("bought back")
    assert (host.suspect, host.in_doubt) == (False, True)
    host.vouch("looked at")
    version = host.version
    host.vouch("looked at")
    assert (host.in_doubt, host.version) == (False, version)
    host.restore(50, 9, "again")
    assert (host.epoch, host.in_doubt) == (50, True)


def _forgotten() -> Host:
    host = Host(ID)
    host.register("h", 4, {})
    host.fence("no power", "BMC")
    host.delete("scrapped")
    return host


@pytest.mark.parametrize(
    "act",
    [
        lambda host: host.delete("again"),
        lambda host: host.fence("again", "BMC"),
        lambda host: host.force_up("again"),
        lambda host: host.unfence("repaired"),
        lambda host: host.disable("rack 3"),
        lambda host: host.see_disks("s", frozenset({"v"})),
    ],
    ids=["delete", "fence", "force_up", "unfence", "disable", "see_disks"],
)
def test_nothing_is_done_to_a_forgotten_host(act: Callable[[Host], None]) -> None:
    host = _forgotten()
    version = host.version
    with pytest.raises((errors.UnknownHostError, errors.OperatorsFenceError)):
        act(host)
    assert host.version == version
    host.ran_hook(1, 0, "", 0.0)
    assert host.version == version + 1, "it had begun before"


def test_only_a_fenced_host_is_forgotten_and_its_fence_covers_what_it_showed_since() -> None:
    host = Host(ID)
    host.register("h", 4, {})
    with pytest.raises(errors.HostInUseError, match="not fenced"):
        host.delete("scrapped")
    assert facts(_forgotten(), "epoch", "fenced", "suspect", "is_known") == {
        "epoch": 2,
        "fenced": True,
        "suspect": True,
        "is_known": False,
    }


def test_a_forgotten_host_that_registers_is_trusted_as_little_as_before() -> None:
    """The same facts as before are news."""
    host = _forgotten()
    host.register("h", 4, {})
    assert facts(host, "epoch", "fenced", "suspect", "is_known") == {
        "epoch": 2,
        "fenced": True,
        "suspect": True,
        "is_known": True,
    }
    host.unfence("new machine")
    assert host.suspect, "it has to release first what is not its own"


def test_a_restored_log_does_not_know_whether_a_forgotten_host_has_come_back() -> None:
    host = _forgotten()
    host.restore(9, 7, "disk lost")
    assert (host.is_known, host.in_doubt) == (True, True)


def test_a_forgotten_host_that_nova_has_can_be_adopted_and_stays_fenced() -> None:
    host = _forgotten()
    with pytest.raises(errors.NotObservedHostError):
        host.adopt("rack 3")
    host.record(Host.HostSeen, name="h", seen=Seen(origin="nova", after=None, before="x").stored())
    assert (host.is_known, host.origin) == (True, "nova")
    host.adopt("rack 3")
    assert facts(host, "origin", "epoch", "fenced", "suspect") == {
        "origin": None,
        "epoch": 2,
        "fenced": True,
        "suspect": True,
    }
