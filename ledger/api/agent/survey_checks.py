"""What agents show of their hosts, checked before it is kept: ids, sizes, texts.

The same rules as of an inventory (agent_checks): ids are canonical, texts are made showable and are
cut, not refused, and what no host can show is refused whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import orjson

from host_agent.shared.masking import mask
from host_agent.shared.survey import (
    PARTS,
    TEXT_CHARS_MAX,
    ConnectionShown,
    DiskShown,
    GuestShown,
    StorageShown,
    Survey,
    SurveyAnswer,
    UnlabelledShown,
)
from host_agent.shared.text import one_line
from ledger.api.agent.agent_checks import NUMBER_MAX, canonical_id, require

_WORD = re.compile(r"[A-Za-z0-9][\w.:-]{0,63}\Z", re.ASCII)
_DIGEST = re.compile(r"[0-9a-f]{64}\Z")
#: In how many facts the copies of a disk can differ (disk_xml.differences), with room for more.
DIFFERS_MAX = 16
#: How large a disk can be: what JSON and PostgreSQL still count exactly.
BYTES_MAX = 2**53 - 1


def checked_answer(answer: SurveyAnswer) -> tuple[SurveyAnswer, str | None]:
    """The answer in canonical form, and its document as JSON text, if it has one.

    Raises WireError.
    """
    require(0 <= answer.epoch <= NUMBER_MAX, "epoch")
    require(bool(_DIGEST.match(answer.digest)), "digest")
    survey = None if answer.survey is None else _checked_survey(answer.survey)
    require(survey is None or survey.epoch == answer.epoch, "epoch")
    checked = replace(answer, token=canonical_id(answer.token, "token"), survey=survey)
    return checked, None if survey is None else orjson.dumps(survey.to_wire()).decode()


def _checked_survey(survey: Survey) -> Survey:
    """In order of ids and names, each once."""
    require(bool(_WORD.match(survey.boot_id)), "boot_id")
    require(len(survey.blind) == len(survey.why_blind) <= len(PARTS), "blind")
    require(set(survey.blind) <= set(PARTS), "blind")
    return replace(
        survey,
        guests=_once(map(_guest, survey.guests), lambda guest: guest.server_id, "guests"),
        connections=_once(
            map(_connection, survey.connections), lambda each: each.attachment_id, "connections"
        ),
        storage=_once(
            map(_storage, survey.storage), lambda each: (each.kind, each.name), "storage"
        ),
        secrets=_once(
            (canonical_id(volume_id, "secrets") for volume_id in survey.secrets), str, "secrets"
        ),
        why_blind=tuple(map(_text, survey.why_blind)),
    )


def _once(items: Iterable[Any], key: Callable[[Any], Any], name: str) -> tuple[Any, ...]:
    found: dict[Any, Any] = {}
    for item in items:
        require(key(item) not in found, name)
        found[key(item)] = item
    return tuple(found[each] for each in sorted(found))


def _guest(guest: GuestShown) -> GuestShown:
    disks = _once(map(_disk, guest.disks), lambda disk: disk.serial, "disks")
    others = guest.unlabelled
    if others is not None:
        others = _once(map(_unlabelled, others), lambda disk: disk.target, "unlabelled")
    id_ = canonical_id(guest.server_id, "server_id")
    return replace(guest, server_id=id_, disks=disks, unlabelled=others)


def _unlabelled(disk: UnlabelledShown) -> UnlabelledShown:
    require(bool(_WORD.match(disk.target)), "unlabelled")
    volume_id = canonical_id(disk.volume_id, "volume_id")
    return replace(disk, volume_id=volume_id, source=_text(disk.source))


def _disk(disk: DiskShown) -> DiskShown:
    for target in (disk.live, disk.persistent):
        require(target is None or bool(_WORD.match(target)), "disks")
    differs = len(disk.differs) <= DIFFERS_MAX and all(map(_WORD.match, disk.differs))
    require(differs, "differs")
    for size in (disk.size_bytes, disk.device_bytes):
        require(size is None or 0 <= size <= BYTES_MAX, "size_bytes")
    source = None if disk.source is None else _text(disk.source)
    return replace(disk, serial=canonical_id(disk.serial, "serial"), source=source)


def _connection(connection: ConnectionShown) -> ConnectionShown:
    names = ("attachment_id", "volume_id", "server_id", "serial")
    ids: dict[str, Any] = {name: canonical_id(getattr(connection, name), name) for name in names}
    return replace(connection, **ids)


def _storage(storage: StorageShown) -> StorageShown:
    require(bool(_WORD.match(storage.kind)), "kind")
    return replace(storage, name=_text(storage.name))


def _text(text: str) -> str:
    """Agents mask secrets; this is the second net."""
    return one_line(mask(text))[:TEXT_CHARS_MAX]
