"""Tokens of the tests, as long as the service wants them, and files to keep them in."""

from __future__ import annotations

from pathlib import Path


def token_of(name: str) -> str:
    """The token of whoever has this name."""
    return f"token-of-{name}-0123456789abcdef0123456789abcdef"


def write_private(path: Path, text: str) -> Path:
    """A file that others may not read, as files with secrets have to be."""
    path.touch(mode=0o600)
    path.write_text(text)
    return path
