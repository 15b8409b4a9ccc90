"""The policy's file: what is taken of it, what is not, and what goes on meanwhile."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from oslo_policy import policy as oslo
from structlog.testing import capture_logs

from aggregates.base import Actor
from ledger.auth import policy as module
from ledger.auth.policy import Policy, PolicyError, Target
from ledger.auth.rules import RULES
from ledger.auth.tokens import Identity, TokenScope
from tests.pages import policy_page

STOP = "os_compute_api:servers:stop"
SHOW = "os_compute_api:servers:show"
FENCE = "attachment-ledger:hosts:fence"


def who(*roles: str, project: str | None = "p", user: str = "u", **vouched: Any) -> Identity:
    actor = Actor(name=user, user_id=user, project_id=project)
    return Identity(actor=actor, roles=frozenset(roles), vouched=TokenScope(**vouched))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "policy.yaml"


def put(file: Path, text: str) -> None:
    """Replace the file as an editor or a package does."""
    beside = file.with_suffix(".new")
    beside.write_text(text)
    beside.replace(file)


def state(policy: Policy) -> tuple[bool, str | None]:
    return policy.stale, policy.trouble


def seen_twice(policy: Policy) -> None:
    policy.refresh()
    policy.refresh()


# ------------------------------------------------------------------------- what it says


def test_a_file_for_nova_does_here_what_it_does_there(file: Path) -> None:
    """With names that are Nova's alone, old forms, and aliases of its own."""
    file.write_text(
        """
        "os_compute_api:os-keypairs:index": "rule:nowhere and ((("
        "os_compute_api:os-agents": ["not", 5]
        "network:attach_external_network": "https://elsewhere/x"
        "admin_api": "role:cloud_admin"
        "owner": "user_id:%(user_id)s"
        "os_compute_api:servers:stop": "rule:owner or rule:admin_api"
        "os_compute_api:servers:start":
            [["role:member", "project_id:%(project_id)s"], ["is_admin:True"]]
        "os_compute_api:servers:reboot": ""
        "os_compute_api:servers:rebuild": "!"
        "os_compute_api:servers:delete": "not role:intern and rule:admin_or_owner"
        "os_compute_api:os-migrate-server:migrate_live": "role:mover"
        """
    )
    with capture_logs() as lines:
        policy = Policy(file)
    assert [line["event"] for line in lines] == ["policy_loaded"]
    assert policy.trouble is None
    mine, colleagues, others = Target("p", "u"), Target("p", "v"), Target("q", "w")
    for rule, identity, target, wanted in (
        (STOP, who("member"), mine, True),
        (STOP, who("member"), colleagues, False),
        (STOP, who("Cloud_Admin"), others, True),
        (STOP, who("admin"), others, False),
        ("os_compute_api:servers:start", who("member"), colleagues, True),
        ("os_compute_api:servers:start", who("reader"), mine, False),
        ("os_compute_api:servers:start", who("admin"), others, True),
        ("os_compute_api:servers:reboot", who(), others, True),
        ("os_compute_api:servers:rebuild", who("admin"), mine, False),
        ("os_compute_api:servers:delete", who("intern"), mine, False),
        ("os_compute_api:servers:delete", who("other"), mine, True),
        ("os_compute_api:os-migrate-server:migrate_live", who("mover"), mine, True),
        ("os_compute_api:os-migrate-server:migrate_live:host", who("mover"), mine, True),
        ("os_compute_api:os-migrate-server:migrate_live:host", who("admin"), mine, False),
        ("os_compute_api:os-migrate-server:migrate:host", who("mover"), mine, False),
        (SHOW, who("reader"), mine, True),  # the file does not say
    ):
        assert policy.permits(identity, rule, target) is wanted, (rule, identity, target)


def test_what_is_true_of_nobody_is_alike_to_nothing(file: Path) -> None:
    file.write_text(f'"admin_or_owner": "@"\n"x": "@"\n"{STOP}": "project_id:%(project_id)s"')
    policy = Policy(file)
    assert not policy.permits(who("member", project=None, system=True), STOP, Target(None))
    assert not policy.permits(who("member"), STOP, Target(None))
    assert policy.permits(who("member"), STOP, Target("p"))
    put(file, f'"{STOP}": "project_id:None or None:%(project_id)s"')
    seen_twice(policy)
    assert not policy.permits(who("member", project=None, system=True), STOP, Target("p"))
    assert not policy.permits(who("member"), STOP, Target(None))


def test_who_administers_a_domain_is_let_in_by_no_rule(file: Path) -> None:
    file.write_text(f'"{STOP}": "@"\n')
    policy = Policy(file)
    assert policy.permits(who("admin", project=None, system=True), STOP)
    assert not policy.permits(who("admin", project=None, domain_id="default"), STOP)


def test_the_sample_changes_nothing_and_its_lines_are_the_defaults(file: Path) -> None:
    text = policy_page.sample()
    file.write_text(text)
    Policy(file)
    assert oslo.parse_file_contents(text) == {}
    lines = [line.removeprefix("#") for line in text.splitlines() if line.startswith('#"')]
    whole = "\n".join(lines)
    assert oslo.parse_file_contents(whole) == {rule.name: rule.check for rule in RULES}
    file.write_text(whole)
    assert Policy(file).trouble is None


# --------------------------------------------------------------------- what is not taken

BROKEN = {
    "no YAML": '"a": "b',
    "a tab": "a:\n\t- b",
    "no table": "- a\n- b",
    "a text": "everybody",
    "no check": f'"{STOP}": 5',
    "none": f'"{STOP}":',
    "a table": f'"{STOP}": {{"a": "b"}}',
    "a list of numbers": f'"{STOP}": [[5]]',
    "a list of nothing": f'"{STOP}": [[]]',
    "half a rule": f'"{STOP}": "role:member and"',
    "two rules": f'"{STOP}": "role:member role:admin"',
    "blank": f'"{STOP}": "   "',
    "brackets": f'"{STOP}": "(role:member"',
    "a word": f'"{STOP}": "member or role:admin"',
    "a word beside a refusal": f'"{STOP}": "member or !"',
    "half a rule with a refusal": f'"{STOP}": "role:a and ! and"',
    "a rule that there is not": f'"{STOP}": "rule:membre"',
    "one by another": f'"{STOP}": "rule:a"\n"a": "not rule:b"',
    "a circle": f'"{STOP}": "rule:a"\n"a": "not rule:b"\n"b": "role:reader or rule:a"',
    "itself": f'"{STOP}": "rule:{STOP}"',
    "another service": f'"{STOP}": "http://policy.example.org/%(project_id)s"',
    "what raises": f'"{STOP}": "role:x and project_id:%(project_id)d"',
    "what raises of the caller": f'"{STOP}": "user_id.name:x"',
    "what raises in a list": f'"{STOP}": [["role:a", "user_id:%(user_id"]]',
}


@pytest.mark.parametrize("how", [*BROKEN], ids=lambda how: how.replace(" ", "-"))
def test_a_broken_file_is_refused_at_the_start_and_takes_nobodys_place(
    how: str, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(100)  # oslo.policy tells of it, too
    file.write_text(BROKEN[how])
    with pytest.raises(PolicyError, match=r"policy\.yaml: "):
        Policy(file)
    put(file, f'"{STOP}": "role:stopper"\n')
    policy = Policy(file)
    put(file, BROKEN[how])
    with capture_logs() as lines:
        seen_twice(policy)
        seen_twice(policy)
    assert [line["event"] for line in lines] == ["policy_not_loaded"]
    assert policy.stale
    assert policy.trouble is not None
    assert "the rules before it go on" in policy.trouble
    assert policy.permits(who("stopper"), STOP)
    assert not policy.permits(who("member"), STOP)
    put(file, f'"{STOP}": "role:member"\n')
    seen_twice(policy)
    assert state(policy) == (False, None)
    assert policy.permits(who("member"), STOP)


def test_no_rule_asks_another_service(file: Path) -> None:
    """It would wait for the answer in every request; here none is asked, not even to try."""
    for url in ("http://127.0.0.1:1/policy", "https://127.0.0.1:1/policy"):
        file.write_text(f'"{STOP}": "role:x and {url}"')
        with pytest.raises(PolicyError, match="are not done here"):
            Policy(file)


def test_a_file_that_is_not_text_or_too_large_is_refused(file: Path) -> None:
    for raw in (b"\xff\xfe\x00", b"# " + b"x" * module.FILE_BYTES_MAX):
        file.write_bytes(raw)
        with pytest.raises(PolicyError, match=r"UTF-8|larger"):
            Policy(file)


def test_a_file_that_is_gone_leaves_its_rules_and_is_taken_when_it_is_back(file: Path) -> None:
    with pytest.raises(PolicyError, match="cannot be read"):
        Policy(file)
    file.write_text(f'"{STOP}": "role:stopper"\n')
    policy = Policy(file)
    away = file.rename(file.with_suffix(".away"))
    seen_twice(policy)
    assert policy.stale
    assert "No such file" in (policy.trouble or "")
    assert policy.permits(who("stopper"), STOP)
    away.rename(file)
    seen_twice(policy)
    assert state(policy) == (False, None)


def test_a_file_that_cannot_be_read_leaves_its_rules_until_it_can(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text(f'"{STOP}": "role:stopper"\n')
    policy = Policy(file)
    put(file, f'"{STOP}": "@"\n')
    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", refused)
        seen_twice(policy)
    assert "Permission denied" in (policy.trouble or "")
    assert not policy.permits(who(), STOP)
    policy.refresh()
    assert policy.trouble is None
    assert policy.permits(who(), STOP)


def refused(path: Path, *args: object) -> None:
    raise PermissionError(13, os.strerror(13), str(path))


def test_a_name_of_ours_that_is_none_is_told(file: Path) -> None:
    file.write_text('"attachment-ledger:host:fence": "!"\n"os_compute_api:server:stop": "!"\n')
    policy = Policy(file)
    assert not policy.stale
    assert (policy.trouble or "").endswith("there are no rules attachment-ledger:host:fence")


# ------------------------------------------------------------------- while requests run


def test_a_file_that_is_being_written_is_left_alone(file: Path) -> None:
    """Emptied first, as editors do: an empty file is all the defaults."""
    file.write_text(f'"{STOP}": "role:stopper"\n')
    policy = Policy(file)
    with file.open("w") as writing:
        policy.refresh()
        assert not policy.permits(who("member"), STOP)
        writing.write(f'"{STOP}": "role:starter"\n')
    policy.refresh()
    assert not policy.permits(who("starter"), STOP)
    policy.refresh()
    assert policy.permits(who("starter"), STOP)


def test_a_question_is_answered_by_one_file_and_not_by_two(file: Path) -> None:
    """Each of the two lets everybody in, by a rule that the other has as a refusal."""
    texts = [
        f'"{STOP}": "rule:one"\n"one": "@"\n"two": "!"\n',
        f'"{STOP}": "rule:two"\n"one": "!"\n"two": "@"\n',
    ]
    file.write_text(texts[0])
    policy, done = Policy(file), Event()

    def swap() -> None:
        for number in range(20):
            put(file, texts[number % 2])
            seen_twice(policy)
        done.set()

    swapping = Thread(target=swap)
    swapping.start()
    asked = 0
    while not done.is_set() or not asked:
        assert policy.permits(who("member", user=f"u{asked}"), STOP)
        asked += 1
    swapping.join()
    assert policy.trouble is None


def test_a_rule_that_raises_and_one_that_there_is_not_let_nobody_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy = Policy()
    with capture_logs() as lines:
        assert not policy.permits(who("admin"), "attachment-ledger:no-such:rule")
    assert [(line["event"], line["rule"]) for line in lines] == [
        ("policy_rule_failed", "attachment-ledger:no-such:rule")
    ]

    def raises(*args: object, **named: object) -> bool:
        raise RuntimeError("no")

    monkeypatch.setattr(oslo.Enforcer, "authorize", raises)
    with capture_logs() as lines:
        assert not policy.permits(who("admin"), FENCE)
        assert not policy.permits(who("admin"), FENCE)
    assert [line["event"] for line in lines] == ["policy_rule_failed"]


@pytest.fixture
def evaluated(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    asked: list[str] = []
    authorize = oslo.Enforcer.authorize

    def counted(self: oslo.Enforcer, rule: str, *args: Any, **named: Any) -> bool:
        asked.append(rule)
        return authorize(self, rule, *args, **named)

    monkeypatch.setattr(oslo.Enforcer, "authorize", counted)
    return asked


def test_what_was_decided_is_not_evaluated_again_until_the_rules_change(
    file: Path, evaluated: list[str]
) -> None:
    file.write_text("{}")
    policy = Policy(file)
    for _ in range(3):
        assert policy.permits(who("member"), STOP)
        assert not policy.permits(who("reader"), STOP)
    assert evaluated == [STOP, STOP]
    put(file, f'"{STOP}": "role:reader"')
    seen_twice(policy)
    assert not policy.permits(who("member"), STOP)
    assert evaluated == [STOP] * 3


def test_users_have_one_answer_unless_a_rule_is_about_users(
    file: Path, evaluated: list[str]
) -> None:
    """Else thousands of agents would drive out each other's."""
    file.write_text("{}")
    policy = Policy(file)
    for rule, count in (("role:member", 1), ("user_id:%(user_id)s", 4), ("service_user_id:u1", 4)):
        put(file, f'"{STOP}": "rule:mine"\n"mine": "{rule}"')
        seen_twice(policy)
        evaluated.clear()
        for user in ("u1", "u2"):
            for owner in ("u1", "u2"):
                permitted = policy.permits(who("member", user=user), STOP, Target("p", owner))
                assert permitted is (count == 1 or ("service" not in rule and user == owner))
        assert len(evaluated) == count


@pytest.fixture
def policy(file: Path) -> Policy:
    file.write_text("{}")
    return Policy(file)


async def test_the_file_is_followed_whatever_happens(
    file: Path, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RELOAD_S", 0.001)
    looked, load, tries = asyncio.Event(), policy._load, iter([ZeroDivisionError("?")])
    loop = asyncio.get_running_loop()

    def loaded(file: Path) -> None:
        for error in tries:
            raise error
        load(file)
        loop.call_soon_threadsafe(looked.set)

    monkeypatch.setattr(policy, "_load", loaded)
    put(file, f'"{STOP}": "!"')
    following = asyncio.create_task(policy.follow())
    async with asyncio.timeout(20):
        await looked.wait()
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    assert not policy.permits(who("admin"), STOP)
    assert not policy.stale
