"""Settings: file, environment, command line; wrong ones name where, which key, what is expected."""

from __future__ import annotations

from pathlib import Path

import pytest

from host_agent import config
from host_agent.shared.contract.ports import PortError
from host_agent.shared.platform.settings import ConfigError
from host_agent.storage.keys import FIXED_KEY_ID
from tests.tokens import write_private


def write(path: Path, text: str) -> Path:
    file = path / "agent.toml"
    write_private(file, text)
    return file


def test_later_source_wins(tmp_path: Path) -> None:
    file = write(tmp_path, '[agent]\nhost = "file"\nworkers = 1\n[ledger]\nurl = "https://file"')
    environ = {
        "ATTACHMENT_LEDGER_AGENT_AGENT__HOST": "environment",
        "ATTACHMENT_LEDGER_AGENT_AGENT__WORKERS": "2",
    }
    settings = config.load(_with_cinder(file), environ, {"agent.workers": "3"})
    assert settings.agent.host == "environment"
    assert settings.agent.workers == 3
    assert settings.ledger.url == "https://file"
    assert settings.libvirt.detach_attempts == 8


def _with_cinder(file: Path) -> Path:
    file.write_text(file.read_text() + '\n[cinder]\nendpoint = "http://c/v3"\n')
    return file


def test_cinder_takes_keystone_options_as_a_table(tmp_path: Path) -> None:
    text = '[cinder]\nconnect_timeout_s = 2\nauth = {auth_type = "password", username = "u"}'
    settings = config.load(write(tmp_path, text), {})
    assert settings.cinder.auth == {"auth_type": "password", "username": "u"}
    assert settings.cinder.connect_timeout_s == 2.0


def test_token_comes_from_its_file_and_is_not_shown(tmp_path: Path) -> None:
    write_private(tmp_path / "token", "s3cret-token\n")
    text = f'[ledger]\ntoken_file = "{tmp_path / "token"}"'
    settings = config.load(write(tmp_path, text), {})
    assert settings.link().token == "s3cret-token"
    assert "s3cret" not in repr(settings)


def test_file_of_a_token_that_all_may_read_is_refused(tmp_path: Path) -> None:
    file = write_private(tmp_path / "token", "s3cret-token\n")
    file.chmod(0o604)
    with pytest.raises(ConfigError, match="holds a secret"):
        config.load(write(tmp_path, f'[ledger]\ntoken_file = "{file}"'), {})


def test_fixed_key_comes_from_its_file_and_is_not_shown(tmp_path: Path) -> None:
    write_private(tmp_path / "key", "c0ffee\n")
    text = f'[keys]\nfixed_key_file = "{tmp_path / "key"}"'
    settings = config.load(write(tmp_path, text), {})
    assert settings.key_managers().passphrase(FIXED_KEY_ID) == "c0ffee"
    assert "c0ffee" not in repr(settings)


def test_barbican_is_asked_as_the_user_of_cinder_unless_told_otherwise(tmp_path: Path) -> None:
    who = {"auth_type": "password", "auth_url": "http://k/v3", "username": "u", "password": "p"}
    table = ", ".join(f'{key} = "{value}"' for key, value in who.items())
    for section in ("cinder", "keys"):
        text = f"[{section}]\nauth = {{{table}}}\n" if section == "cinder" else ""
        text += '[keys]\nbarbican = "catalog"\n'
        text += f"auth = {{{table}}}\n" if section == "keys" else ""
        settings = config.load(write(tmp_path, text), {})
        with pytest.raises(PortError) as raised:  # there is no Keystone
            settings.key_managers().passphrase("7a1f1c9e-1111-4222-8333-444455556666")
        assert raised.value.code == "key_manager_unavailable"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[agent]\nworkers = -1", r"agent\.workers: is -1, expected a whole number above 0"),
        ("[agent]\nhost = 'a/b'", "agent: 'host' is a name of letters"),
        ("[agent]\nhost = ''", "agent: 'host' is a name of letters"),
        ("[ledger]\nwait_s = 0", r"ledger\.wait_s: is 0, expected a number above 0"),
        ("[cinder]\nauth = 'x'", r"cinder\.auth: expected a table, not a text"),
        ("[agent]\nhots = 'x'", r"unknown key 'agent\.hots', did you mean 'host'\?"),
        ("[agents]\n", r"unknown key 'agents', did you mean 'agent'\?"),
        ("[ledger]\ntoken = 'a'\ntoken_file = 'b'", "both set"),
        ("[ledger]\ntoken_file = '/nowhere/at/all'", "cannot be read"),
    ],
)
def test_wrong_setting_is_explained(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        config.load(write(tmp_path, text), {})


def test_variable_of_former_versions_is_refused_and_not_passed_over() -> None:
    with pytest.raises(ConfigError, match="enter a section: ATTACHMENT_LEDGER_AGENT_LEDGER__TOKEN"):
        config.load(None, {"ATTACHMENT_LEDGER_AGENT_LEDGER_TOKEN": "s3cret"})


def test_guests_can_migrate_to_a_host_that_says_how(tmp_path: Path) -> None:
    file = write(tmp_path, "[agent]")
    assert config.load(_with_cinder(file), {}).migration() is None
    told = {
        "ATTACHMENT_LEDGER_AGENT_LIBVIRT__MIGRATION_URI": "qemu+tls://compute-1/system",
        "ATTACHMENT_LEDGER_AGENT_LIBVIRT__MIGRATION_ADDRESS": "192.0.2.1",
    }
    expected = {"uri": "qemu+tls://compute-1/system", "address": "192.0.2.1"}
    assert config.load(file, told).migration() == expected


@pytest.mark.parametrize(
    ("ledger", "said"),
    [
        ("url = 'http://192.0.2.1:8790'", "plain_http = true"),
        ("url = 'http://127.0.0.1'\nca_file = 'a'", "are for TLS"),
        ("url = 'https://a'\ncertificate_file = 'a'", "need each other"),
        ("url = 'ledger.example:8790'", "has the form"),
        ("url = 'https://a:70000'", "has the form"),
    ],
)
def test_what_of_the_line_does_not_fit_is_refused(tmp_path: Path, ledger: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        config.load(write(tmp_path, f"[ledger]\n{ledger}"), {})


def test_plain_http_to_another_machine_can_be_asked_for(tmp_path: Path) -> None:
    text = "[ledger]\nurl = 'http://192.0.2.1:8790'\nplain_http = true"
    assert config.load(write(tmp_path, text), {}).ledger.plain_http
