"""The hosts of a cloud as the third party of a survey: by files, or asked by the user's own `ssh`.

By ssh each round asks anew, before it reads the lists: so what was attached between the two is
missing on its host in one round at most.  Names of hosts are Nova's data, and what hosts say is
theirs: none becomes an option, a shell's word, another host's survey, or more than so many bytes.
"""

from __future__ import annotations

import os
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL, PIPE
from threading import Event

import msgspec

from host_agent.shared.contract import HOST_NAME
from host_agent.shared.contract.survey import HostsWord, Survey
from host_agent.shared.platform.text import one_line
from ledger.cli.errors import usage

#: How many hosts are asked at once, how long each, and how long its answer may be.
AT_ONCE, ANSWER_S, ANSWER_BYTES_MAX = 8, 60.0, 32 * 1024 * 1024
#: How much ssh may say besides, and how much of a reason is told.
ERROR_BYTES_MAX, WHY_CHARS_MAX = 65_536, 200
PIECE_BYTES = 65_536
#: How often it is asked whether ssh has ended, or has to.
TICK_S = 0.05
#: It asks nobody for a password, and lends the host nothing.  Not a master of connections: one
#: would stay behind, in a session of its own.
SSH = (
    *("ssh", "-T", "-a", "-x", "-oBatchMode=yes", "-oConnectTimeout=10"),
    *("-oClearAllForwardings=yes", "-oControlMaster=no", "--"),
)
COMMAND = "attachment-ledger-agent survey"


class _TooMuchError(Exception):
    """A host says more than a survey can be."""


def of_files(files: Iterable[Path], unread: list[str]) -> Mapping[str, Survey]:
    """The surveys of hosts, by their names; `unread`: what they lack is added.  Raises CliError."""
    found: dict[str, Survey] = {}
    for path in files:
        try:
            word = msgspec.json.decode(path.read_bytes(), type=HostsWord)
        except (OSError, ValueError, RecursionError) as error:
            raise usage(
                f"{path} is no survey of a host: {error}",
                f"Write it there with: {COMMAND} > FILE",
            ) from None
        if word.host in found:
            raise usage(f"{path} is a second survey of host {word.host}.")
        found[word.host] = word.survey
        unread += _blind(word)
    return found


def by_ssh(names: Iterable[str], silent: dict[str, str], unread: list[str]) -> Mapping[str, Survey]:
    """The same of those that answer; `silent`: why others do not.  CliError: there is no ssh."""
    found: dict[str, Survey] = {}
    every = list(dict.fromkeys(names))
    threads, stop = ThreadPoolExecutor(AT_ONCE), Event()
    try:
        words = list(threads.map(lambda name: _word(name, stop), every))
    finally:  # Ctrl-C does not reach what has a session of its own
        stop.set()
        threads.shutdown(cancel_futures=True)
    for name, word in zip(every, words, strict=True):
        if isinstance(word, str):
            silent.setdefault(one_line(name), _short(word))
        else:
            found[name] = word.survey
            unread += _blind(word)
    return found


def told(silent: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """All that have no survey, in one line; and why, those of each reason in one."""
    names: dict[str, list[str]] = {}
    for name, why in silent.items():
        names.setdefault(why, []).append(name)
    every = [f"a survey of {', '.join(silent)}"] if silent else []
    return every, [f"a survey of {', '.join(of)}: {why}" for why, of in names.items()]


def _blind(word: HostsWord) -> list[str]:
    blind = dict(zip(word.survey.blind, word.survey.why_blind, strict=False))
    return [f"the {part} of host {word.host}: {_short(why)}" for part, why in blind.items()]


def _short(why: str) -> str:
    return one_line(why)[:WHY_CHARS_MAX]


def _word(name: str, stop: Event) -> HostsWord | str:
    """What a host says, or why there is nothing."""
    if not re.fullmatch(HOST_NAME, name):
        return "ssh is given no such name"
    try:
        code, said, why = _asked(name, stop)
    except TimeoutError:
        return f"no answer in {ANSWER_S:g} s"
    except _TooMuchError:
        return "it says too much to be a survey"
    if code:
        last = why.decode(errors="replace").strip().rpartition("\n")[2]
        return f"exit code {code}: {last}"
    try:
        word = msgspec.json.decode(said, type=HostsWord)
    except (ValueError, RecursionError) as error:
        return f"what it says is no survey of a host: {error}"
    if word.host != name:
        return f"its agent calls it {word.host}; its [agent] host has to be Nova's name for it"
    return word


def _asked(name: str, stop: Event) -> tuple[int, bytes, bytes]:
    """The exit code of ssh, its output and its errors.  None of its processes is left behind.

    Raises TimeoutError, _TooMuchError, CliError.
    """
    words = [*SSH, name, COMMAND]
    try:
        ssh = subprocess.Popen(
            words, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, start_new_session=True
        )
    except OSError as error:
        raise usage(f"ssh cannot be run: {error}", "Ask hosts otherwise: --hosts FILE") from None
    with ssh:
        try:
            said, why = _said(ssh, stop)
        finally:
            # Before ssh is waited for: until then its number is no other's.
            with suppress(ProcessLookupError):
                os.killpg(ssh.pid, signal.SIGKILL)
        return ssh.wait(), said, why


def _said(ssh: subprocess.Popen[bytes], stop: Event) -> tuple[bytes, bytes]:
    """All until ssh ends: what it has begun may keep the pipes.  TimeoutError, _TooMuchError."""
    assert ssh.stdout is not None, "it is a pipe"
    assert ssh.stderr is not None, "it is a pipe"
    kept = {each.fileno(): bytearray() for each in (ssh.stdout, ssh.stderr)}
    most = dict(zip(kept, (ANSWER_BYTES_MAX, ERROR_BYTES_MAX), strict=True))
    end = time.monotonic() + ANSWER_S
    with selectors.DefaultSelector() as pipes:
        for pipe in kept:
            pipes.register(pipe, selectors.EVENT_READ)
        ended = False
        while (ready := pipes.select(0 if ended else TICK_S)) or not ended:
            if stop.is_set() or time.monotonic() > end:
                raise TimeoutError
            ended = _has_ended(ssh)  # and the next look at the pipes has the rest of its words
            for key, _ in ready:
                piece = os.read(key.fd, PIECE_BYTES)
                kept[key.fd] += piece
                if len(kept[key.fd]) > most[key.fd]:
                    raise _TooMuchError
                if not piece:
                    pipes.unregister(key.fd)
    said, why = map(bytes, kept.values())
    return said, why


def _has_ended(ssh: subprocess.Popen[bytes]) -> bool:
    """It stays to be waited for."""
    return os.waitid(os.P_PID, ssh.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
