"""No secret in a line of the agent's log."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from host_agent.log import HumanFormatter, JsonFormatter
from host_agent.shared import masking


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
