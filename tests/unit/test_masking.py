"""No secret in a text, by the name it stands under and by its value."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from host_agent.shared.platform import masking

SECRET_KEYS = [
    "auth_password",
    "discovery_auth_password",
    "password",
    "passwd",
    "adminPass",
    "passphrase",
    "keyring",
    "fixed_key",
    "key",
    "keys",
    "api-key",
    "secret",
    "secret_key",
    "client_secret",
    "token",
    "X-Auth-Token",
    "token_sha256",
    "Authorization",
    "credentials",
]
HARMLESS_KEYS = [
    "secret_uuid",
    "rbd_secret_uuid",
    "secret_type",
    "encryption_key_id",
    "key_size",
    "token_count",
    "token_file",
    "requests_per_token_max",
    "service_token_roles",
    "keystone",
    "author",
    "auth_enabled",
    "auth_username",
    "volume_id",
]


@pytest.mark.parametrize("key", SECRET_KEYS)
def test_secret_is_blanked_under_its_key_in_data_and_in_text(key: str) -> None:
    said = {key: "hunter2"}
    assert masking.masked({"deep": [said, (said,)]}) == {"deep": [{key: "***"}, [{key: "***"}]]}
    assert masking.masked({key: {"data": ["hunter2"]}}) == {key: "***"}
    assert masking.without_secrets([said, {"x": (said,)}]) == [{}, {"x": [{}]}]
    for text in (
        f"{key}=hunter2",
        f"{key} = hunter2, refused",
        f"{key}: hunter2",
        f"Login failed ({key}='hunter2')",
        str({"x": 1, key: "hunter2", "y": 2}),
        str({key: b"hunter2"}),
        json.dumps(said),
        json.dumps({"body": json.dumps(said)}),
        json.dumps(json.dumps({"body": json.dumps(said)})),
    ):
        assert "***" in masking.mask(text)
        assert "hunter2" not in masking.mask(text)


@pytest.mark.parametrize("key", SECRET_KEYS)
def test_a_key_is_known_in_whatever_letters_the_pattern_takes_for_its_own(key: str) -> None:
    """`mask` looks for the stems of all such names before it looks for names."""
    odd = {"k": "\N{KELVIN SIGN}", "s": "\N{LATIN SMALL LETTER LONG S}"}
    odd["i"] = "\N{LATIN SMALL LETTER DOTLESS I}"
    for other in (key.upper(), *(key.lower().replace(*pair) for pair in odd.items())):
        assert masking.is_secret_key(other), other
        assert masking.mask(f"{other}=hunter2") == f"{other}=***"


@pytest.mark.parametrize("key", HARMLESS_KEYS)
def test_what_stands_under_a_harmless_key_is_shown(key: str) -> None:
    said = {key: "457eb676-33da"}
    assert masking.masked(said) == masking.without_secrets(said) == said
    for text in (str(said), f"{key}=457eb676-33da", f"{key}: 457eb676-33da"):
        assert masking.mask(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://ledger:hunter2@db/ledger", "postgresql://ledger:***@db/ledger"),
        ("rabbit://a:hunter2@h1:5672,b:hunter2@h2:5672/v", "rabbit://a:***@h2:5672/v"),
        ("Authorization: Bearer hunter2 was refused", "Authorization: *** was refused"),
        ("GET /?token=hunter2&x=1", "GET /?token=***"),
        ("{'auth_password': 'hunter 2', 'x': 1}", "{'auth_password': ***, 'x': 1}"),
    ],
)
def test_all_of_a_secret_is_blanked_and_the_rest_stays(text: str, shown: str) -> None:
    assert masking.mask(text) == masking.masked([text])[0] == shown


@pytest.mark.parametrize(
    "harmless",
    [
        "target_iqn: iqn.2010-10.org",
        "volume is attached to server=abc",
        "code=no_ceph_secret kind=final",
        "http://127.0.0.1:8776/v3",
        "waiting for volume v: status is creating",
        {"service_token": True, "token": None, "tokens": False},
        {"volume_id": "v", "n": 3},
    ],
)
def test_what_is_no_secret_is_shown(harmless: Any) -> None:
    assert masking.masked(harmless) == harmless


def test_a_connection_information_is_no_matter_for_logs_and_is_kept_on_the_host() -> None:
    info = {"connection_info": {"driver_volume_type": "nfs", "data": {"export": "a:/b"}}}
    assert masking.masked(info) == {"connection_info": "***"}
    assert masking.without_secrets(info) == info


def test_learnt_value_is_blanked_wherever_it_turns_up() -> None:
    masking.learn({"data": {"keyring": "[client.x]\n\tkey = AQBplanted==\n", "name": "pool/image"}})
    assert masking.mask("mount failed: AQBplanted== rejected") == "mount failed: *** rejected"
    assert masking.masked({"why": "AQBplanted=="}) == {"why": "***"}
    assert masking.mask("pool/image") == "pool/image"
    masking.learn({"auth_password": "my  chap\tpass"})
    assert masking.clean_message("iscsiadm:  my  chap\tpass refused") == "iscsiadm: *** refused"


def test_short_values_are_not_learnt() -> None:
    masking.learn({"password": "a"})
    assert masking.mask("a plain sentence") == "a plain sentence"


def test_what_is_known_is_bounded() -> None:
    masking.learn([{"password": f"planted-{number:06d}"} for number in range(2000)])
    assert len(masking._known) <= masking.KNOWN_MAX
    assert masking.mask("planted-001999") == "***"


@pytest.mark.parametrize(
    "text",
    [
        "key_" * 8_000,
        "key_" * 8_000 + "= ",
        "secret_type-" * 3_000 + "=",
        "a." * 16_000,
        "key=" + "\\" * 32_000,
    ],
    ids=["keys", "keys-of-nothing", "harmless", "words", "backslashes"],
)
def test_a_long_text_is_masked_in_a_time_that_grows_with_its_length(text: str) -> None:
    """Agents send up to 64 KB of it, and whoever waits waits behind that: 2 s and more each."""
    began_s = time.process_time()
    masking.mask(text)
    assert time.process_time() - began_s < 0.25
