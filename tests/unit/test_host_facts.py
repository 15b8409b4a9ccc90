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
    assert (host.version, host.why_disabled) == (3, "it is disabled (nobody said why)")
    host.enable()
    host.enable()
    assert (host.version, host.disabled, host.disabled_reason) == (4, False, None)
    host.unfence("never was")
    host.fence("no power", "BMC")
    assert facts(host, "version", "epoch", "fenced", "suspect", "why") == {
        "version": 5,
        "epoch": 1,
        "fenced": True,
        "suspect": True,
        "why": "no power (BMC)",
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
