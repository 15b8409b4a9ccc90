"""Keeping secrets out of everything that leaves the agent: logs, errors, reports.

Two nets.  By name: `key: value` pairs whose key looks like a secret's are blanked in
any text.  By value: what stood under such a key in a connection information is
learnt when it is read and blanked wherever it turns up, for messages of libraries
that name no key.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from typing import Any

#: The newest values are kept; a host has far fewer attachments under way at once.
KNOWN_MAX = 1000
#: Shorter values would blank ordinary words, and protect nothing.
LENGTH_MIN = 6

MASK = "***"
_NAME = (
    r"[\w-]*(?:passw(?:or)?d|passphrase|keyring|token|credential|(?:secret|key)(?!_?uuid))[\w-]*"
)
_SECRET_KEY = re.compile(rf"^{_NAME}$", re.IGNORECASE)
_PAIR = re.compile(
    rf"""(?P<key>["']?\b{_NAME}["']?\s*[:=]\s*)(?P<value>"[^"]*"|'[^']*'|[^\s,;}}\])"']+)""",
    re.IGNORECASE,
)
#: Keys that look like secrets and are not, or tell only whether there is one.
_HARMLESS = frozenset({"secret_type", "secret_uuid", "encryption_key_id", "key_size"})

_lock = threading.Lock()
_known: OrderedDict[str, None] = OrderedDict()


def is_secret_key(key: str) -> bool:
    return key.lower() not in _HARMLESS and _SECRET_KEY.match(key) is not None


def secret_values(data: Any, *, under_secret: bool = False) -> list[str]:
    """All strings that stand, at any depth, under a key that looks like a secret's."""
    if isinstance(data, dict):
        return [
            value
            for key, item in data.items()
            for value in secret_values(item, under_secret=under_secret or is_secret_key(str(key)))
        ]
    if isinstance(data, (list, tuple)):
        return [v for item in data for v in secret_values(item, under_secret=under_secret)]
    return [data] if under_secret and isinstance(data, str) else []


def without_secrets(data: Any) -> Any:
    """The same, at any depth without the keys that look like a secret's."""
    if isinstance(data, dict):
        return {k: without_secrets(v) for k, v in data.items() if not is_secret_key(str(k))}
    if isinstance(data, (list, tuple)):
        return [without_secrets(item) for item in data]
    return data


def learn(data: Any) -> None:
    """Remember the secrets in `data`, so that `mask` blanks them from now on."""
    with _lock:
        for value in secret_values(data):
            for word in (value, *value.split()):  # a keyring holds more than its key
                if len(word) >= LENGTH_MIN:
                    _known[word] = None
                    _known.move_to_end(word)
        while len(_known) > KNOWN_MAX:
            _known.popitem(last=False)


def mask(text: str) -> str:
    """`text` with every secret we can recognise blanked."""
    with _lock:
        known = [value for value in _known if value in text]
    for value in sorted(known, key=len, reverse=True):
        text = text.replace(value, MASK)
    return _PAIR.sub(_blank, text)


def _blank(found: re.Match[str]) -> str:
    name = found["key"].strip("\"' :=\t")
    return found[0] if name.lower() in _HARMLESS else found["key"] + MASK
