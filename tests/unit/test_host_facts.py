"""What each event makes true of a host, and when it is suspect no more."""

from __future__ import annotations

import pytest

from aggregates.base import About
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
