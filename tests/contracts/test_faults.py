"""Fault rules: what they match, how often they strike, and that a crash uses one up."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from host_agent.shared.faults import MAX_RULES, FaultError, Faults, InjectedError


def struck(faults: Faults, call: str, **ids: str) -> bool:
    return faults.take(call, **ids) is not None


def test_skip_lets_calls_pass_and_count_bounds_the_strikes() -> None:
    faults = Faults([{"call": "guests.plug", "do": "fail", "skip": 2, "count": 3}])
    assert [struck(faults, "guests.plug") for _ in range(7)] == [False] * 2 + [True] * 3 + [
        False
    ] * 2


def test_a_count_of_null_strikes_always() -> None:
    faults = Faults([{"call": "guests.plug", "do": "fail", "count": None}])
    assert all(struck(faults, "guests.plug") for _ in range(5))


def test_all_ids_must_match_and_a_star_is_any_call() -> None:
    match = {"volume_id": "v", "server_id": "s"}
    faults = Faults([{"call": "*", "match": match, "do": "fail", "count": None}])
    assert struck(faults, "guests.plug", volume_id="v", server_id="s", host="h")
    assert not struck(faults, "guests.plug", volume_id="v", server_id="t")
    assert not struck(faults, "guests.plug", volume_id="v")


def test_a_star_lets_pass_what_cannot_suffer_it() -> None:
    faults = Faults([{"call": "*", "do": "cut", "count": None}])
    assert not struck(faults, "guests.plug")
    assert struck(faults, "guests.survey")


def test_a_call_site_names_a_call_that_rules_can_name() -> None:
    with pytest.raises(AssertionError, match=r"guests\.plugg is not among CALLS"):
        Faults().take("guests.plugg")


def test_the_first_rule_that_is_not_used_up_takes_the_call() -> None:
    rules = [{"call": "guests.plug", "do": "fail", "message": m} for m in ("first", "second")]
    faults = Faults(rules)
    found = [faults.take("guests.plug") for _ in range(3)]
    assert [fault.message if fault else None for fault in found] == ["first", "second", None]


@pytest.mark.parametrize(
    ("rule", "status", "kind"),
    [
        ({"do": "fail"}, 503, "retryable"),
        ({"do": "fail_after"}, 500, "unknown"),
        ({"do": "timeout", "kind": "final"}, 500, "unknown"),
        ({"do": "fail", "status": 409}, 409, "final"),
        ({"do": "fail", "kind": "final"}, 400, "final"),
        ({"do": "fail", "status": 500, "kind": "retryable"}, 500, "retryable"),
    ],
)
def test_status_and_kind_follow_from_each_other(
    rule: dict[str, Any], status: int, kind: str
) -> None:
    fault = Faults([{"call": "guests.plug", **rule}]).take("guests.plug")
    assert fault is not None
    assert (fault.status, fault.kind) == (status, kind)


@pytest.mark.parametrize(
    ("rules", "complaint"),
    [
        ({}, "must be a list"),
        ([1], "rule 1: is a int, must be an object"),
        ([{"do": "fail"}], "rule 1: 'call' is missing"),
        (
            [{"call": "guests.plug", "do": "fail"}, {"call": "guests.plug"}],
            "rule 2: 'do' is missing",
        ),
        (
            [{"call": "guests.plug", "do": "burn"}],
            "rule 1: 'do' is 'burn'; it must be one of crash, ",
        ),
        (
            [{"call": "guests.plug", "do": "fail", "tims": 1}],
            "rule 1: unknown key 'tims'; allowed: call",
        ),
        (
            [{"call": "guests.plug", "do": "fail", "count": 0}],
            "'count' is 0; it must be an integer >= 1",
        ),
        ([{"call": "guests.plug", "do": "fail", "skip": True}], "'skip' is True"),
        ([{"call": "guests.plug", "do": "delay", "seconds": -1}], "'seconds' is -1"),
        ([{"call": "guests.plug", "do": "fail", "status": 200}], "'status' is 200"),
        ([{"call": "guests.plug", "do": "fail", "match": {"a": 1}}], "'match' is {'a': 1}"),
        (
            [{"call": "guests.plugg", "do": "fail"}],
            "'call' is 'guests.plugg'; it must be \"*\" or one",
        ),
        ([{"call": "guests.plug", "do": "stale"}], "guests.plug cannot suffer; the calls that can"),
        ([{"call": "volume_show", "do": "cut"}], "'do' is 'cut', which volume_show cannot suffer"),
        ([{"call": "volume_show", "do": "stale", "changes": 0}], "'changes' is 0"),
        ([{"call": "guests.plug", "do": "fail"}] * (MAX_RULES + 1), "at most 1000"),
    ],
)
def test_a_wrong_rule_is_refused_naming_rule_key_and_choice(rules: Any, complaint: str) -> None:
    with pytest.raises(FaultError) as caught:
        Faults(rules)
    assert complaint in str(caught.value)


def test_what_around_does_before_and_after() -> None:
    done: list[str] = []
    rules: list[dict[str, Any]] = [
        {"call": "guests.plug", "do": do} for do in ("fail", "fail_after", "crash", "crash_after")
    ]
    rules += [
        {"call": "guests.plug", "do": "lie"},
        {"call": "guests.plug", "do": "delay", "seconds": 2},
    ]
    faults = Faults(
        rules,
        kill=lambda: done.append("killed"),
        sleep=lambda s: done.append(f"slept {s}") if s else None,
    )
    for _ in rules:
        try:
            with faults.around("guests.plug") as fault:
                done.append("lied" if fault and fault.lies else "did")
        except InjectedError:
            done.append("failed")
    assert done == [
        *("failed", "did", "failed", "killed", "failed", "did", "killed", "failed"),
        *("lied", "slept 2", "did"),
    ]


def test_a_body_that_fails_itself_is_not_struck_again() -> None:
    faults = Faults([{"call": "guests.plug", "do": "fail_after"}])
    with pytest.raises(KeyError), faults.around("guests.plug"):
        raise KeyError


async def test_around_async_strikes_alike() -> None:
    faults = Faults([{"call": "guests.plug", "do": "fail_after", "message": "late"}])
    done = []
    with pytest.raises(InjectedError, match="late"):
        async with faults.around_async("guests.plug"):
            done.append(True)
    assert done


def test_a_call_fails_as_the_rule_says() -> None:
    rule = {"call": "guests.plug", "do": "fail", "code": "no", "kind": "final", "message": "Never."}
    with pytest.raises(InjectedError) as failed, Faults([rule]).around("guests.plug"):
        raise AssertionError("the body must not run")
    assert (failed.value.kind, failed.value.code, str(failed.value)) == ("final", "no", "Never.")


# --- files ---------------------------------------------------------------------------------------


_stamps = itertools.count(1)


def write(path: Path, rules: object) -> None:
    """Rules in a file whose mtime differs from before, however coarse the clock is."""
    path.write_text(json.dumps(rules))
    os.utime(path, (0, next(_stamps)))


def test_a_changed_file_is_read_again_and_used_up_rules_stay_so(tmp_path: Path) -> None:
    path, first = tmp_path / "faults.json", {"call": "guests.plug", "do": "fail"}
    faults = Faults.load(path, tmp_path / "state")
    assert not struck(faults, "guests.plug")
    write(path, [first])
    assert [struck(faults, "guests.plug") for _ in range(2)] == [True, False]
    write(path, [first, {"call": "guests.unplug", "do": "fail"}])
    assert not struck(faults, "guests.plug")
    assert struck(faults, "guests.unplug")
    assert [rule["seen"] for rule in faults.rules()] == [1, 1]


def test_used_up_rules_stay_so_in_the_next_process(tmp_path: Path) -> None:
    path, state = tmp_path / "faults.json", tmp_path / "state"
    write(path, [{"call": "guests.plug", "do": "fail", "count": 2}])
    assert struck(Faults.load(path, state), "guests.plug")
    again = Faults.load(path, state)
    assert [struck(again, "guests.plug") for _ in range(2)] == [True, False]


def test_replaced_rules_are_all_armed() -> None:
    rule = {"call": "guests.plug", "do": "fail"}
    faults = Faults([rule])
    assert struck(faults, "guests.plug")
    faults.replace([rule])
    assert struck(faults, "guests.plug")


def test_a_bad_file_is_refused_at_start_and_ignored_loudly_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "faults.json"
    path.write_text("[{]")
    with pytest.raises(FaultError, match=r"faults\.json"):
        Faults.load(path)
    write(path, [{"call": "guests.plug", "do": "fail", "count": None}])
    faults = Faults.load(path)
    write(path, [{"call": "guests.plug"}])
    assert struck(faults, "guests.plug")
    assert "rule 1: 'do' is missing" in caplog.text


_CRASHER = """
import sys
from pathlib import Path
from host_agent.shared.faults import Faults
faults = Faults.load(Path(sys.argv[1]), Path(sys.argv[2]))
with faults.around("guests.plug"):
    print("did", flush=True)
print("survived", flush=True)
"""


@pytest.mark.parametrize(("do", "told"), [("crash", ""), ("crash_after", "did\n")])
def test_a_crash_with_count_1_happens_once(tmp_path: Path, do: str, told: str) -> None:
    path, state = tmp_path / "faults.json", tmp_path / "state"
    write(path, [{"call": "guests.plug", "do": do}])
    command = [sys.executable, "-c", _CRASHER, str(path), str(state)]
    first, second = (
        subprocess.run(command, capture_output=True, text=True, check=False) for _ in "12"
    )
    assert (first.returncode, first.stdout) == (-signal.SIGKILL, told)
    assert (second.returncode, second.stdout) == (0, "did\nsurvived\n")
