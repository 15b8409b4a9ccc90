"""How a command ends: exit codes, and the error that has one; a leaf, imported by all commands."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What scripts can rely on (docs/cli.md)."""

    OK = 0
    UNEXPECTED = 1
    USAGE = 2
    NOT_FOUND = 3
    REFUSED = 4
    OPERATION_FAILED = 5  # cleanly: all was undone, by itself or on request
    PARKED = 6  # an operator is needed
    TIMED_OUT = 7  # waiting ended, the operation goes on
    DIFFERS = 8  # a survey has found something
    PARTIAL = 9  # a cell or a page gave no answer; the rest is printed
    NOT_ALL = 10  # of a host that changes hands, some servers stay whose they are


class CliError(Exception):
    """The command ends here: what and why is the message, `hint` what to do next."""

    def __init__(self, message: str, code: ExitCode, hint: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.hint = hint


def usage(message: str, hint: str | None = None) -> CliError:
    return CliError(message, ExitCode.USAGE, hint)
