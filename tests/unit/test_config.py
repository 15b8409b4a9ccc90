from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from host_agent.shared.platform.settings import ConfigError
from ledger import config
from ledger.auth.tokens import AuthError, Identity, RequestSender, StaticTokens
from tests.tokens import write_private

STRONG = "0123456789abcdef0123456789abcdef"
TOKEN = {"name": "ada", "user_id": "u1", "project_id": "p1", "roles": ["member"]}

FULL = """
database_url = "postgresql://ledger:hunter2@db/ledger"
auth = "tokens"
host_down_after_s = 90

[listen]
host = "0.0.0.0"
port = 9000
plain_http = true

[[tokens]]
token = "s3cret-of-ada-0123456789abcdef01"
name = "ada"
user_id = "u1"
project_id = "p1"
roles = ["admin", "operator"]

[[tokens]]
token = "s3cret-of-host-0123456789abcdef0"
name = "agent on c1"
user_id = "u2"
project_id = "service"
roles = ["agent"]
host = "c1"

[cinder]
endpoint = "http://cinder:8776/v3"
connect_timeout_s = 3

[cinder.auth]
auth_type = "password"
username = "ledger"
password = "pass-of-cinder"
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(config, "SOURCE", config.SOURCE._replace(file=tmp_path / "ledger.toml"))
    return tmp_path / "ledger.toml"


def load(file: Path, text: str = "", **environ: str) -> config.Settings:
    write_private(file, text)
    return config.load(environ=environ)


def refused(file: Path, text: str, **environ: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(file, text, **environ)
    return str(caught.value)


def test_defaults_serve_the_own_machine_only(file: Path) -> None:
    settings = config.load(environ={})
    assert settings.auth == "noauth"
    assert settings.listen.is_loopback
    assert settings.host_down_after_s == 60


def test_flags_win_over_environment_over_file_over_defaults(file: Path) -> None:
    file.write_text("[listen]\nport = 1\nhost = '127.0.0.2'\n[limits]\npage_items_max = 500")
    environ = {"LEDGER_LISTEN__PORT": "2", "LEDGER_LIMITS__STREAMS_MAX": "7"}
    settings = config.load(environ=environ, flags={"listen.port": 3, "database_url": None})

    assert settings.listen == config.Listen(host="127.0.0.2", port=3)
    assert (settings.limits.page_items_max, settings.limits.streams_max) == (500, 7)
    assert config.load(environ=environ).listen.port == 2
    assert config.load(environ={}).listen.port == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("databse_url = 'x'", "unknown key 'databse_url', did you mean 'database_url'?"),
        ("[listen]\nprot = 1", "unknown key 'listen.prot', did you mean 'port'?"),
        ("[limits]\nzzz = 1", "unknown key 'limits.zzz', known are request_body_bytes_max"),
        ("[cinder]\nendpiont = 'x'", "unknown key 'cinder.endpiont', did you mean 'endpoint'?"),
        ("[cinder.backoff]\nzzz = 1", "unknown key 'cinder.backoff.zzz', known are"),
        ("[sever]\nx = 1", "unknown key 'sever'"),
        (
            "[listen]\nport = 65536",
            "port: is 65536, expected a whole number from 0 to 65535",
        ),
        ("host_down_after_s = 0", "host_down_after_s: is 0, expected a number above 0"),
        ("[cinder]\nconnect_timeout_s = 'long'", "cinder.connect_timeout_s: expected a number"),
        ("auth = 'king'", "auth: expected one of noauth, tokens"),
        ("[limits]\npage_items_max = 1001", "is 1001, expected a whole number from 1 to 1000"),
        ("[tracing]\nendpoint = 'http://['", "'endpoint' is a collector's URL"),
        ("[limits]\npage_items_max = 5", "'page_items_default' is above 'page_items_max'"),
    ],
)
def test_what_is_wrong_is_refused_naming_key_and_file(file: Path, text: str, said: str) -> None:
    message = refused(file, text)
    assert said in message
    assert message.startswith(f"{file}: ")


def test_wrong_environment_is_refused_naming_the_variable(file: Path) -> None:
    assert refused(file, "", LEDGER_LISTEN__PORT="x").startswith(
        "environment variable LEDGER_LISTEN__PORT: listen.port: "
    )


def test_clients_variables_are_not_the_services(file: Path) -> None:
    load(file, LEDGER_URL="http://127.0.0.1", LEDGER_TOKEN="x", LEDGER_TEST_DATABASE_URL="x")


WHERE = "auth = 'tokens'\n[[tokens]]\nname='a'\nuser_id='a'\nproject_id='p'\nroles=['reader']\n"


@pytest.mark.parametrize("auth", ["", f"{WHERE}token='{STRONG}'\n"])
def test_what_is_novas_is_passed_on_where_keystone_says_who_asks(file: Path, auth: str) -> None:
    passing = "[observe]\npass_on_to = 'http://nova.internal:8774'\n"
    assert "Nova takes Keystone's tokens alone" in refused(file, f"{auth}{passing}")
    keystone = "auth = 'keystone'\n[keystone.auth]\nauth_url = 'http://keystone'\n"
    given = load(file, f"{keystone}{passing}").observe.pass_on_to
    assert given == "http://nova.internal:8774"
    for wrong in (
        "nova:8774",
        "http://nova/compute",
        "http://a@nova",
        "http://nova?x",
        "ftp://nova",
        "http://[",
        "http://nova:70000",
    ):
        text = f"{keystone}[observe]\npass_on_to = '{wrong}'\n"
        assert "without a path: http://nova.internal:8774" in refused(file, text)


def test_off_loopback_plain_http_has_to_be_asked_for(file: Path) -> None:
    text = f"{WHERE}token='{STRONG}'\n[listen]\nhost = '192.0.2.1'\n"
    said = refused(file, text)
    assert "listen.certificate_file and listen.key_file" in said
    assert "listen.plain_http = true" in said
    load(file, f"{text}plain_http = true")
    load(file, f"{text}certificate_file = 'a'\nkey_file = 'b'")


@pytest.mark.parametrize(
    ("listen", "said"),
    [
        ("certificate_file = 'a'", "need each other"),
        ("key_file = 'a'", "need each other"),
        ("client_ca_file = 'a'", "needs TLS"),
        ("certificate_file = 'a'\nkey_file = 'b'\nplain_http = true", "contradict"),
        ("public_url = 'ledger.example'", "has the form https://host:port"),
        ("public_url = 'http://['", "has the form https://host:port"),
    ],
)
def test_what_of_tls_does_not_fit_is_refused(file: Path, listen: str, said: str) -> None:
    assert said in refused(file, f"[listen]\n{listen}")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "ledger.example.org", ""])
def test_noauth_is_refused_off_the_loopback(file: Path, host: str) -> None:
    assert "every caller admin" in refused(file, f"[listen]\nhost = '{host}'")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_noauth_is_allowed_on_the_loopback(file: Path, host: str) -> None:
    load(file, f"[listen]\nhost = '{host}'")


async def test_bearer_of_a_token_is_found_and_of_another_is_not(file: Path) -> None:
    settings = load(file, FULL)
    ada = await bearer(settings, "s3cret-of-ada-0123456789abcdef01")
    agent = await bearer(settings, "s3cret-of-host-0123456789abcdef0")
    assert (ada.actor.name, ada.actor.roles) == ("ada", ("admin", "operator"))
    assert ada.roles == {"admin", "manager", "member", "reader", "service"}
    assert (agent.actor.user_id, agent.host) == ("u2", "c1")
    for stranger in (
        "s3cret-of-nobody",
        str(settings.tokens[0].token_sha256),
    ):
        with pytest.raises(AuthError):
            await bearer(settings, stranger)


async def bearer(settings: config.Settings, presented: str) -> Identity:
    return await StaticTokens(settings).authenticate(
        RequestSender(headers={"X-Auth-Token": presented})
    )


def token(**changes: Any) -> str:
    given = {"token": STRONG, **TOKEN, **changes}
    lines = [f"{key} = {value!r}" for key, value in given.items() if value is not None]
    return "\n".join(["auth = 'tokens'", "[[tokens]]", *lines])


async def test_token_may_be_given_by_its_hash(file: Path) -> None:
    digest = config.hash_token(STRONG)
    settings = load(file, token(token=None, token_sha256=digest.upper()))
    assert (await bearer(settings, STRONG)).actor.name == "ada"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"token": None}, "either 'token' or 'token_sha256'"),
        ({"token_sha256": "0" * 64}, "either 'token' or 'token_sha256'"),
        ({"token": ""}, "either 'token' or 'token_sha256'"),
        ({"token": STRONG[1:]}, "can be guessed: it needs 32 characters"),
        ({"token": "abcdefg" * 10}, "can be guessed: it needs 32 characters, 8 different"),
        ({"token": None, "token_sha256": "0" * 63}, "no SHA-256"),
        ({"token": None, "token_sha256": "g" * 64}, "no SHA-256"),
        ({"roles": ["agent"]}, "that role needs one"),
        ({"host": "c1"}, "belongs to the role 'agent'"),
        ({"roles": []}, "roles"),
        ({"roles": ["king"]}, "roles"),
        ({"colour": "red"}, "unknown key 'tokens.0.colour'"),
    ],
)
def test_senseless_token_is_refused(file: Path, changes: dict[str, Any], said: str) -> None:
    assert said in refused(file, token(**changes))


def test_tokens_mode_needs_tokens_and_different_ones(file: Path) -> None:
    assert "needs [[tokens]]" in refused(file, "auth = 'tokens'")
    twice = token() + "\n" + token().removeprefix("auth = 'tokens'\n")
    assert "the same token" in refused(file, twice)


def test_cinder_section_becomes_the_clients_settings(file: Path) -> None:
    settings = load(file, FULL, LEDGER_CINDER__AUTH__PASSWORD="other").cinder
    assert settings.endpoint == "http://cinder:8776/v3"
    assert settings.connect_timeout_s == 3.0
    assert settings.auth
    assert settings.auth["username"] == "ledger"
    assert settings.auth["password"] == "other"


def test_no_secret_is_shown_or_told_by_repr_or_error(file: Path) -> None:
    settings = load(file, FULL)
    digest = settings.tokens[0].token_sha256
    shown = config.shown(settings)
    assert shown["database_url"] == "user=ledger password=*** dbname=ledger host=db"
    assert shown["tokens"][0]["name"] == "ada"
    assert shown["cinder"]["auth"]["username"] == "ledger"
    wrong = refused(file, FULL + "\n[limits]\nstreams_max = 0")
    for secret in ("hunter2", "s3cret", "pass-of-cinder", str(digest)):
        assert secret not in str(shown)
        assert secret not in repr(settings)
        assert secret not in wrong


@pytest.mark.parametrize(
    "dsn",
    [
        "host=db password=x;hunter2",
        r"host=db password='it\'s hunter2'",
        r"host=db password=x\ hunter2",
        "postgresql://db/ledger?password=x,hunter2",
        "postgresql://db/ledger?pass%77ord=hunter2",
        "host=db password='hunter2",
    ],
)
def test_a_password_ends_where_libpq_says(dsn: str) -> None:
    shown = config.shown(config.Settings(database_url=dsn))
    assert "***" in shown["database_url"]
    assert "hunter2" not in str(shown)


def test_a_database_without_a_password_is_shown_as_it_is_written() -> None:
    for dsn in ("postgresql:///ledger?connect_timeout=2", "host=/run dbname=ledger", None):
        assert config.shown(config.Settings(database_url=dsn))["database_url"] == dsn


def test_settings_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.Settings().auth = config.AuthMode.TOKENS  # type: ignore[misc]


SMALL = "[[flavors]]\nname = 'm1.small'\nvcpus = 1\nmemory_mb = 2048\n"


def test_a_flavor_is_a_size_by_an_id_which_is_its_name_unless_there_is_one(file: Path) -> None:
    text = f"{SMALL}[[flavors]]\nid = '3'\nname = 'm1.medium'\nvcpus = 2\nmemory_mb = 4096\n"
    found = [(each.key, each.name, each.size) for each in load(file, text).flavors]
    assert found == [("m1.small", "m1.small", (1, 2048)), ("3", "m1.medium", (2, 4096))]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (SMALL, "two [[flavors]] have the same name"),
        (SMALL.replace("m1.small", "other") + "id = 'm1.small'", "the same id"),
        (SMALL.replace("m1.small", "c2.m2048"), "has to be of that size"),
        (SMALL.replace("m1.small", "other") + "id = 'c1.m512'", "has to be of that size"),
        (SMALL.replace("m1.small", "a/b"), "stands in addresses"),
        (SMALL.replace("m1.small", " a"), "no space at either end"),
        (SMALL.replace("m1.small", "detail"), "stands in addresses"),
        (SMALL.replace("m1.small", ""), "1 to 255 printable characters"),
        (SMALL.replace("vcpus = 1", "vcpus = 0"), "of vCPUs from 1 to 1024"),
        (SMALL.replace("= 2048", "= 15"), "of MiB from 16 to"),
        (SMALL.replace("vcpus = 1", ""), "vcpus"),
        (SMALL + "disk = 20", "disk"),
    ],
)
def test_a_flavor_that_means_nothing_is_refused(file: Path, more: str, said: str) -> None:
    assert said in refused(file, SMALL + more)
