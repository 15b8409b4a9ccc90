"""What is known of Keystone's tokens, for how long; and what its answers and rules mean."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from host_agent.shared.cinder.client import CinderClient
from host_agent.shared.cinder.settings import CinderSettings
from host_agent.shared.platform.lines import within
from host_agent.shared.platform.settings import ConfigError
from host_agent.shared.platform.telemetry import call_seconds
from ledger.auth import known as known_module
from ledger.auth.authenticator import authenticator
from ledger.auth.keystone import KeystoneTokens
from ledger.auth.keystone_client import KeystoneClient, KeystoneError, ValidatedToken
from ledger.auth.known import TokenCache
from ledger.auth.tokens import AuthError, KeystoneAwayError, RequestSender, WrongTokensError
from ledger.config import AuthMode, KeystoneSettings, Settings
from ledger.http.probes import neighbours
from ledger.trial.cloud import free_port
from tests.counted import outcomes
from tests.doubles.simulated_keystone import HOUR, Fault, SimulatedKeystone, running_keystone

ALICE = ValidatedToken(
    user_id="u1",
    user_name="alice",
    project_id="p1",
    domain_id=None,
    system=False,
    roles=frozenset({"member"}),
    is_admin_project=True,
    audit_id="a1",
    methods=("password",),
    trust_id=None,
    application_credential_id=None,
    access_rules=None,
    left_s=3600.0,
)


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


class Asking:
    """Answers about tokens from a table, and counts."""

    def __init__(self) -> None:
        self.tokens: dict[str, ValidatedToken] = {"good": ALICE}
        self.asked: list[tuple[str, bool]] = []
        self.go_on: asyncio.Event | None = None
        self.trouble: Exception | None = None

    async def __call__(
        self, token: str, address: str, allow_expired: bool
    ) -> ValidatedToken | None:
        self.asked.append((token, allow_expired))
        if self.go_on is not None:
            await self.go_on.wait()
        if self.trouble is not None:
            raise self.trouble
        found = self.tokens.get(token)
        return None if found and found.left_s < 0 and not allow_expired else found


@pytest.fixture
def asking() -> Asking:
    return Asking()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def known(asking: Asking, clock: Clock) -> TokenCache:
    return TokenCache(asking, age_s=60.0, count_max=3, clock=clock)


async def times(asking: Asking, known: TokenCache, token: str, **given: Any) -> int:
    """How often it is asked about when it is shown once."""
    before = len(asking.asked)
    await known.whose(token, "somewhere", **given)
    return len(asking.asked) - before


# --------------------------------------------------------------------------- known tokens


async def test_a_token_is_known_for_the_time_of_the_settings_which_is_how_late_a_revocation_is(
    asking: Asking, known: TokenCache, clock: Clock
) -> None:
    assert await known.whose("good", "a") == ALICE
    del asking.tokens["good"]  # revoked
    clock.now += 59.9
    assert await known.whose("good", "b") == ALICE
    assert len(asking.asked) == 1
    clock.now += 0.1
    assert await known.whose("good", "a") is None


async def test_a_token_is_not_known_beyond_its_own_end(
    asking: Asking, known: TokenCache, clock: Clock
) -> None:
    asking.tokens["short"] = replace(ALICE, left_s=5.0)
    assert await times(asking, known, "short") == 1
    clock.now += 4.9
    assert await times(asking, known, "short") == 0
    clock.now += 0.1
    assert await times(asking, known, "short") == 1
    assert await times(asking, known, "short", allow_expired=True) == 0


async def test_an_expired_token_is_known_only_where_it_is_allowed(
    asking: Asking, known: TokenCache
) -> None:
    asking.tokens["old"] = replace(ALICE, left_s=-60.0)
    assert await known.whose("old", "a") is None
    assert await known.whose("old", "a", allow_expired=True) is not None
    assert await known.whose("old", "a") is None
    assert asking.asked == [("old", False), ("old", True)]


async def test_a_wrong_token_is_known_for_ten_seconds(
    asking: Asking, known: TokenCache, clock: Clock
) -> None:
    assert await times(asking, known, "wrong") == 1
    clock.now += 9.9
    assert await times(asking, known, "wrong") == 0
    clock.now += 0.1
    assert await times(asking, known, "wrong") == 1


async def test_the_least_used_is_forgotten_and_wrong_tokens_push_out_no_right_ones(
    asking: Asking, known: TokenCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_module, "WRONG_MAX", 2)
    for name in ("one", "two", "three"):
        asking.tokens[name] = ALICE
        await known.whose(name, "a")
    for number in range(50):
        await known.whose(f"wrong-{number}", "a")
    assert len(known._wrong) == 2
    assert await times(asking, known, "one") == 0
    asking.tokens["four"] = ALICE
    await known.whose("four", "a")
    assert len(known._right) == 3
    assert [await times(asking, known, name) for name in ("one", "three", "four")] == [0, 0, 0]
    assert await times(asking, known, "two") == 1


async def test_many_who_show_a_token_at_once_are_one_to_keystone(
    asking: Asking, known: TokenCache
) -> None:
    asking.go_on = asyncio.Event()
    shown = [asyncio.create_task(known.whose("good", f"a{n}")) for n in range(50)]
    await asyncio.sleep(0)
    shown[0].cancel()  # who asked first goes away
    asking.go_on.set()
    found = await asyncio.gather(*shown, return_exceptions=True)
    assert found[1:] == [ALICE] * 49
    assert len(asking.asked) == 1
    assert not known._asking


async def test_a_trouble_is_told_to_all_who_wait_and_not_remembered(
    asking: Asking, known: TokenCache
) -> None:
    asking.trouble = AuthError("away")
    found = await asyncio.gather(
        *(known.whose("good", "a") for _ in range(5)), return_exceptions=True
    )
    assert found == [asking.trouble] * 5
    assert len(asking.asked) == 1
    asking.trouble = None
    assert await known.whose("good", "a") == ALICE


async def test_no_token_is_kept(asking: Asking, known: TokenCache) -> None:
    for token in ("good", "nonsense"):
        await known.whose(token, "a")
        assert token not in repr(vars(known)).replace(repr(asking), "")


# ------------------------------------------------------------------------------- clocks


@pytest.fixture
def keystone() -> Iterator[SimulatedKeystone]:
    with running_keystone() as running:
        yield running


def client_of(keystone: SimulatedKeystone) -> KeystoneClient:
    return KeystoneClient(keystone.user("ledger", "service", project="service"))


@pytest.mark.parametrize("hours", [-48, 0, 48])
def test_how_long_a_token_is_valid_is_keystones_to_say_whatever_our_clock_shows(
    hours: int, keystone: SimulatedKeystone
) -> None:
    keystone.clock_ahead = timedelta(hours=hours)
    found = client_of(keystone).whose(keystone.token("alice", "member", project="p"))
    assert found is not None
    assert found.left_s == pytest.approx(3600, abs=30)


def test_where_keystone_does_not_tell_the_time_only_its_word_says_what_is_valid(
    keystone: SimulatedKeystone,
) -> None:
    keystone.tells_date = False
    client = client_of(keystone)
    good = keystone.token("alice", "member", project="p")
    old = keystone.token("alice", "member", project="p", valid=-HOUR)
    valid, expired = client.whose(good), client.whose(old, allow_expired=True)
    assert valid is not None
    assert expired is not None
    assert (valid.left_s, expired.left_s) == (math.inf, -math.inf)
    assert client.whose(old) is None


def test_calls_are_counted_by_outcome(keystone: SimulatedKeystone) -> None:
    """A log-in and a question; one that nobody answers."""
    calls = call_seconds()
    auth = keystone.user("ledger", "service", project="service")
    client = KeystoneClient(auth, calls=calls)
    client.whose(keystone.token("alice", "member", project="p"))
    keystone.fault = Fault.AWAY
    with pytest.raises(KeystoneError):
        client.whose("unknown")
    assert outcomes(calls) == {("keystone", "2xx"): 2, ("keystone", "no_answer"): 1}
    client.close()


# --------------------------------------------------------------------------- log-in, time


def test_an_end_is_kept_to_with_the_log_in_and_whoever_else_logs_in(
    keystone: SimulatedKeystone,
) -> None:
    """keystoneauth would wait for another thread's log-in as long as that takes."""
    client = client_of(keystone)
    keystone.fault = Fault.HANGS
    client._lock.acquire()
    began = time.monotonic()
    with within(0.3), pytest.raises(KeystoneError, match="log-in in time"):
        client.whose("gAAAAAB")
    client._lock.release()
    with within(0.3), pytest.raises(KeystoneError, match="did not answer in time"):
        client.whose("gAAAAAB")
    assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"token": None},
        {"token": []},
        {"token": {"user": {"id": "a b", "name": "x"}, "expires_at": "2026-01-01T00:00:00Z"}},
        {"token": {"user": {"id": "u", "name": "x"}, "expires_at": "tomorrow"}},
        {"token": {"user": {"id": "u", "name": "x"}}},
    ],
    ids=["nothing", "null", "a list", "an id that is none", "a time that is none", "no time"],
)
def test_an_answer_that_cannot_be_read_proves_nothing(
    body: dict[str, Any], keystone: SimulatedKeystone, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = client_of(keystone)
    token = keystone.token("alice", "member", project="p")
    assert client.whose(token) is not None
    monkeypatch.setattr("tests.doubles.simulated_keystone._json", lambda _: repr_json(body))
    with pytest.raises(KeystoneError, match="cannot be read"):
        client.whose(token)


def repr_json(body: dict[str, Any]) -> bytes:
    return repr(body).replace("'", '"').replace("None", "null").encode()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"auth_type": "admin_token", "endpoint": "http://x", "token": "t0ken"}, "logs in"),
        ({"auth_type": "of-nobody"}, "of-nobody"),
        ({"username": "u", "password": "t0ken"}, "auth_url"),
    ],
    ids=["no log-in", "unknown", "incomplete"],
)
def test_options_of_no_plugin_that_logs_in_are_refused_in_words(
    options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        KeystoneClient(options)
    assert "t0ken" not in str(caught.value)


# ------------------------------------------------------------------------- wrong tokens


async def test_wrong_tokens_of_one_address_are_not_anothers_and_are_forgiven(
    clock: Clock,
) -> None:
    class Client:
        asked = 0

        def whose(self, token: str, *, allow_expired: bool = False) -> ValidatedToken | None:
            self.asked += 1
            return ALICE if token == "good" else None

    client = Client()
    settings = Settings(
        auth=AuthMode.KEYSTONE, keystone=KeystoneSettings(auth={"auth_url": "http://k/v3"})
    )
    tokens = KeystoneTokens(settings, client, clock)

    async def shown(token: str, address: str) -> str:
        try:
            asked = RequestSender(headers={"X-Auth-Token": token}, address=address)
            return (await tokens.authenticate(asked)).actor.name
        except AuthError as error:
            return type(error).__name__

    for number in range(100):
        assert await shown(f"wrong-{number}", "bad") == "AuthError"
    assert await shown("good", "bad") == WrongTokensError.__name__
    assert client.asked == 100
    assert await shown("good", "other") == "alice"
    assert await shown("good", "bad") == "alice"  # it is known, so nobody is asked
    assert await shown("wrong", "bad") == WrongTokensError.__name__
    clock.now += 10.0
    assert await shown("wrong", "bad") == "AuthError"
    tokens.close()


# ------------------------------------------------------------------ settings, self-checks


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"order": (AuthMode.KEYSTONE,)}, "each once"),
        ({"order": (AuthMode.NOAUTH, AuthMode.KEYSTONE)}, "each once"),
        ({"service_token_roles": ()}, "names no role"),
    ],
    ids=str,
)
def test_settings_that_mean_nothing_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        KeystoneSettings(**given)


def test_keystone_is_asked_as_cinders_user_unless_it_has_its_own() -> None:
    with pytest.raises(ValueError, match=r"needs \[keystone.auth\]"):
        Settings(auth=AuthMode.KEYSTONE)
    cinder = CinderSettings(auth={"username": "ledger"})
    settings = Settings(auth=AuthMode.KEYSTONE, cinder=cinder)
    assert settings.keystone_auth == {"username": "ledger"}
    own = KeystoneSettings(auth={"username": "asker"})
    assert replace(settings, keystone=own).keystone_auth == {"username": "asker"}


@pytest.mark.parametrize(
    ("roles", "warned"),
    [(("admin", "service"), False), (("service",), True), (("member",), True)],
    ids=str,
)
async def test_a_role_without_which_cinders_lists_are_empty_is_told(
    roles: tuple[str, ...], warned: bool, keystone: SimulatedKeystone
) -> None:
    """Cinder answers 200 and nothing to who may not see the volumes of other projects."""
    auth = keystone.user("ledger", *roles, project="service")
    cinder = CinderSettings(auth=auth, endpoint="http://127.0.0.1:1/v3")
    settings = Settings(auth=AuthMode.KEYSTONE, cinder=cinder)
    async with AsyncExitStack() as stack:
        warnings = neighbours.warnings(settings, stack)
        said = await warnings["cinder"]()
        assert ("lists are empty" in (said or "")) is warned
        assert (await warnings["keystone"]() is not None) is (roles == ("member",))
        keystone.fault = Fault.AWAY
        assert await neighbours.warnings(settings, stack)["cinder"]() is None
    noauth = CinderClient(CinderSettings(endpoint="http://127.0.0.1:1/v3"))
    assert neighbours.empty_lists(noauth) is None
    noauth.close()


async def test_whether_keystone_answers_is_asked_for_readiness(keystone: SimulatedKeystone) -> None:
    auth = keystone.user("ledger", "service", project="service")
    settings = Settings(auth=AuthMode.KEYSTONE, keystone=KeystoneSettings(auth=auth))
    settings = replace(settings, cinder=CinderSettings(endpoint="http://127.0.0.1:1/v3"))
    async with AsyncExitStack() as stack:
        check = neighbours.checks(settings, stack)["keystone"]
        assert await check() is None
        keystone.fault = Fault.HTML
        assert "Keystone's answer cannot be read" in (await check() or "")
        keystone.fault = Fault.AWAY
        assert "Keystone cannot be reached" in (await check() or "")
        assert set(neighbours.checks(replace(settings, auth=AuthMode.NOAUTH), stack)) == {"cinder"}


async def test_where_nobody_listens_is_no_401() -> None:
    async with AsyncExitStack() as stack:
        auth = {
            "auth_type": "password",
            "auth_url": f"http://127.0.0.1:{free_port(stack)}",
            "username": "u",
            "password": "p",
        }
        settings = Settings(auth=AuthMode.KEYSTONE, keystone=KeystoneSettings(auth=auth))
        asked = RequestSender(headers={"X-Auth-Token": "gAAAAAB"})
        with pytest.raises(KeystoneAwayError, match="Keystone"):
            await authenticator(settings, stack).authenticate(asked)
