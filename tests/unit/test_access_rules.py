"""Which requests the access rules of an application credential have."""

from __future__ import annotations

import time

from ledger.auth.access_rules import AccessRule, allow, fits

SERVER = "/v2.1/servers/5f1c"

PATTERNS: list[tuple[str, str, bool]] = [
    (SERVER, SERVER, True),
    (SERVER, f"{SERVER}/", False),
    ("/v2.1/servers/*", SERVER, True),
    ("/v2.1/servers/*", "/v2.1/servers/", False),
    ("/v2.1/servers/*", f"{SERVER}/action", False),
    ("/v2.1/servers/{server_id}/action", f"{SERVER}/action", True),
    ("/v2.1/servers/{server_id}/action", "/v2.1/servers/a/b/action", False),
    ("/v2.1/servers/5*", SERVER, True),
    ("/v2.1/servers/6*", SERVER, False),
    ("/v2.1/**", f"{SERVER}/os-volume_attachments", True),
    ("/v2.1/servers**", "/v2.1/servers", True),
    ("/v2.1/**/action", f"{SERVER}/action", True),
    ("/v2.1/**/action", f"{SERVER}/actions", False),
    ("**", "", True),
    ("/*/servers", "/v2.1/servers", True),
    ("/v2.1/servers/*/*", f"{SERVER}/action", True),
    ("/v2.1/servers/5.1c", SERVER, False),  # no regular expression
    ("/v2.1/[a-z]+", "/v2.1/servers", False),
    ("/v2.1/{open", "/v2.1/{open", True),
    ("", "/", False),
]


def test_the_path_of_an_access_rule_means_what_keystonemiddleware_takes_it_for() -> None:
    for pattern, path, fit in PATTERNS:
        assert fits(pattern, path) is fit, (pattern, path)


def test_an_access_rule_is_of_one_service_method_and_path() -> None:
    rules = [
        AccessRule("compute", "GET", "/v2.1/servers"),
        AccessRule("attachment-ledger", "POST", "/v1/**"),
    ]
    for method, path, allowed in (
        ("GET", "/v2.1/servers", True),
        ("POST", "/v2.1/servers", False),
        ("GET", "/v1/flows", False),
        ("POST", "/v1/refresh", True),
    ):
        assert allow(rules, method, path) is allowed
    assert not allow([AccessRule("compute", "POST", "/v1/**")], "POST", "/v1/refresh")
    assert not allow([AccessRule("volume", "GET", "/v2.1/servers")], "GET", "/v2.1/servers")
    assert not allow([], "GET", "/v2.1/servers")


def test_a_hostile_pattern_takes_no_longer_than_pieces_times_path() -> None:
    """As a regular expression these take years."""
    began = time.process_time()
    assert not fits("**a" * 40, "a" * 39 + "/" * 4000 + "b")
    assert not fits("*a" * 40 + "!", "a" * 4000)
    assert time.process_time() - began < 5
