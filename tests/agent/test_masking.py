"""No secret in a text, by the name it stands under and by its value."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from host_agent.log import HumanFormatter, JsonFormatter
from host_agent.shared import masking


@pytest.mark.parametrize(
    "text",
    [
        "auth_password=hunter2-secret",
        '{"auth_password": "hunter2-secret"}',
        "{'discovery_auth_password': 'hunter2-secret', 'x': 1}",
        "X-Auth-Token: hunter2-secret",
        "--password hunter2-secret is not caught, but token=hunter2-secret is"[28:],
        "keyring = hunter2-secret",
        "secret: hunter2-secret",
    ],
)
def test_value_under_a_secrets_name_is_blanked(text: str) -> None:
    assert "hunter2-secret" not in masking.mask(text)
    assert "***" in masking.mask(text)


@pytest.mark.parametrize(
    "text",
    [
        "secret_uuid=457eb676-33da",
        "target_iqn: iqn.2010-10.org",
        "volume is attached to server=abc",
        "code=no_ceph_secret kind=final",
    ],
)
def test_harmless_text_is_left_alone(text: str) -> None:
    assert masking.mask(text) == text


def test_learnt_value_is_blanked_wherever_it_turns_up() -> None:
    masking.learn({"data": {"keyring": "[client.x]\n\tkey = AQBplanted==\n", "name": "pool/image"}})
    assert masking.mask("mount failed: AQBplanted== rejected") == "mount failed: *** rejected"
    assert masking.mask("pool/image") == "pool/image"


def test_short_values_are_not_learnt() -> None:
    masking.learn({"password": "a"})
    assert masking.mask("a plain sentence") == "a plain sentence"


def test_what_is_known_is_bounded() -> None:
    masking.learn([{"password": f"planted-{number:06d}"} for number in range(2000)])
    assert len(masking._known) <= masking.KNOWN_MAX
    assert masking.mask("planted-001999") == "***"


@pytest.mark.parametrize("formatter", [JsonFormatter(), HumanFormatter()])
def test_no_log_line_holds_a_secret_even_in_a_traceback(formatter: logging.Formatter) -> None:
    masking.learn({"auth_password": "in-the-traceback"})
    try:
        raise RuntimeError("CHAP in-the-traceback")
    except RuntimeError:
        exc_info = sys.exc_info()
    record = logging.LogRecord("x", 40, "f", 1, "token=%s", ("abcdefgh",), exc_info)
    line = formatter.format(record)
    assert "in-the-traceback" not in line
    assert "abcdefgh" not in line
    assert "RuntimeError" in line
    if isinstance(formatter, JsonFormatter):
        assert json.loads(line)["level"] == "error"
