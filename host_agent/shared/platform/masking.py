"""Keeps secrets out of logs, errors, reports and answers, in the service and on hosts.

Theory of operation.  Secrets are recognised in two ways.
* By name: the value of a key that names a secret is blanked, in data (`masked`) and in text
  (`mask`: `key=value`, `"key": "value"`, a password in a URL).
* By value: the secrets of connection information, and keys of volumes, are remembered when they are
  read (`learn`), and blanked wherever they appear, for messages of libraries without a key.

One pattern decides which keys name a secret; in doubt it masks.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from host_agent.shared.platform.text import one_line

#: The newest values are kept; a host has far fewer attachments in progress.
KNOWN_MAX = 1000
#: Shorter values would blank ordinary words, and protect nothing.
LENGTH_MIN = 6
#: The limit of a message; a longer one is cut.
MESSAGE_CHARS_MAX = 1_000

MASK = "***"

#: Keys that name the place, the kind, or the number of secrets.
_HARMLESS = r"[\w-]*(?:[_-]?uuid|[_-](?:file|type|size|count|max|roles)|encryption_key_id)"
_NAME = (
    rf"(?!{_HARMLESS}(?![\w-]))"
    r"[\w-]*(?:passw(?:or)?d|admin_?pass|passphrase|keyring|credential|authorization"
    r"|token|secret|keys?(?![a-z]))[\w-]*+"
)
_SECRET_KEY = re.compile(_NAME, re.IGNORECASE)
#: Linear in the text, which may come from agents and tenants: only a word before a value is
#: searched for a key, and the quantifiers are possessive.
_PAIR = re.compile(
    # In JSON within JSON the quotes have backslashes.
    r"""(?P<name>(?<![\w-])(?=[\w-]++\\*+["']?\s*+[:=])"""
    rf"""(?>{_NAME})\\*+["']?\s*+[:=]\s*+)"""
    r"""(?:(?:basic|bearer)\s++)?(?:\\*+(?:[bu]\\*+)?(?:"[^"]*"|'[^']*')|[^\s,;}\])"']+)""",
    re.IGNORECASE,
)
#: Each name of a secret has one of these, case-folded; most texts have none, and this check costs a
#: tenth of the pattern's (`tests/unit/test_masking.py`).
_STEMS = ("pass", "cred", "author", "token", "secret", "key")
_PASSWORD_IN_URL = re.compile(r"(?P<name>(?<![\w+.-])[\w+.-]++://[^\s:/@]*+:)[^\s/]+(?=@)")

_lock = threading.Lock()
_known: OrderedDict[str, None] = OrderedDict()


@lru_cache(KNOWN_MAX)
def is_secret_key(key: str) -> bool:
    """Whether the value of this key is a secret."""
    return _SECRET_KEY.fullmatch(key) is not None


def is_blanked(key: str) -> bool:
    """Whether the whole value of this key is blanked."""
    return key == "connection_info" or is_secret_key(key)


def mask(text: str) -> str:
    """The text with every recognised secret blanked."""
    with _lock:
        known = [value for value in _known if value in text]
    for value in sorted(known, key=len, reverse=True):
        text = text.replace(value, MASK)
    if "://" in text:
        text = _PASSWORD_IN_URL.sub(rf"\g<name>{MASK}", text)
    folded = text.casefold()
    if any(stem in folded for stem in _STEMS):
        text = _PAIR.sub(rf"\g<name>{MASK}", text)
    return text


def clean_message(text: object) -> str:
    """A message for people and logs: bounded, one printable line, secrets masked.

    Errors from OpenStack's message bus have a traceback after the message, which is removed.
    """
    message, _, _ = str(text or "").partition("\nTraceback (most recent call last)")
    # Masked first, because a known secret may have several spaces.
    return one_line(" ".join(mask(message).split()))[:MESSAGE_CHARS_MAX]


def masked(value: Any, key: str = "") -> Any:
    """The value of `key` with every recognised secret blanked.

    True, False and None stay.  A `connection_info` is blanked as a whole.
    """
    if value is None or isinstance(value, bool):
        return value
    if is_blanked(key):
        return MASK
    if isinstance(value, Mapping):
        return {name: masked(item, str(name)) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [masked(item) for item in value]
    return mask(value) if isinstance(value, str) else value


def holds_secret(value: Any, key: str = "") -> bool:
    """Whether the value of `key` is or contains a secret text."""
    if isinstance(value, Mapping):
        return any(holds_secret(item, str(name)) for name, item in value.items())
    if isinstance(value, (list, tuple)):
        return any(holds_secret(item, key) for item in value)
    return isinstance(value, str) and bool(value) and masked(value, key) != value


def without_secrets(data: Any) -> Any:
    """The data without keys, at any depth, that name a secret."""
    if isinstance(data, dict):
        return {k: without_secrets(v) for k, v in data.items() if not is_secret_key(str(k))}
    if isinstance(data, (list, tuple)):
        return [without_secrets(item) for item in data]
    return data


def learn(data: Any) -> None:
    """Remember the secrets in `data`, so that `mask` blanks them from now on."""
    with _lock:
        for value in _secret_values(data):
            for word in (value, *value.split()):  # a keyring has more than its key
                if len(word) >= LENGTH_MIN:
                    _known[word] = None
                    _known.move_to_end(word)
        while len(_known) > KNOWN_MAX:
            _known.popitem(last=False)


def _secret_values(data: Any, *, under_secret: bool = False) -> list[str]:
    """All strings, at any depth, under a key that names a secret."""
    if isinstance(data, dict):
        return [
            value
            for key, item in data.items()
            for value in _secret_values(item, under_secret=under_secret or is_secret_key(str(key)))
        ]
    if isinstance(data, (list, tuple)):
        return [v for item in data for v in _secret_values(item, under_secret=under_secret)]
    return [data] if under_secret and isinstance(data, str) else []
