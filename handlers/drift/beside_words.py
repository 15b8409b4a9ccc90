"""The classes of differences beside a Nova (`beside_nova`): the meaning and the repair of each.

A class with the name of a class of looks (`classes`) means the same; `attached_twice` and
`volume_failed` exist only here.  A repair is a command of Nova or Cinder and its effect, or the
reason why no command is safe.  `{volume}`, `{server}`, `{attachment}` and `{host}` are
placeholders.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from aggregates.base import About
from handlers.drift.classes import BY_NAME, Severity

#: In findings about a Nova, the party that rows call the ledger.
NOVA = "nova"


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """A command and its effect; or why no command is safe, and what to find out."""

    why: str
    command: str | None = None


@dataclass(frozen=True, kw_only=True)
class DifferenceClass:
    """A class of difference.  `lasts`: reported only after it has lasted for `--stuck`.

    `cases`: the repair by status, where it depends on that; `remedy`: the repair otherwise.
    """

    name: str
    severity: Severity
    meaning: str
    remedy: Remedy
    cases: Mapping[str, Remedy] = field(default_factory=dict)
    lasts: bool = False

    @property
    def rank(self) -> int:
        """The worst first; a volume of `owner_gone` any member of its project may delete."""
        return 0 if self.name == "owner_gone" else 1 + list(Severity).index(self.severity)


_DELETE = "openstack --os-volume-api-version 3.27 volume attachment delete {attachment}"
_COMPLETE = "openstack --os-volume-api-version 3.44 volume attachment complete {attachment}"
_SET = "openstack volume set --state {state} {volume}"
_ROW = "This changes only Cinder's row, and nothing in the back-end or on a host."
_NOBODY = "First check that no host has a session or a disk of the volume."
_LOG = "First check in the log of its cinder-volume that no task works on it any more."

#: Statuses that never change by themselves, so they need not last to be reported.
ENDED = frozenset(
    {"available", "in-use", "error", "error_deleting", "error_extending", "error_restoring"}
    | {"error_backing-up", "error_managing", "error_attaching", "error_detaching"}
)


def _set(state: str, first: str, *, detached: bool = False) -> Remedy:
    command = _SET.replace("{state}", f"{state} --detached" if detached else state)
    return Remedy(command=command, why=f"{first} {_ROW}")


_FREE = _set("available", _NOBODY, detached=True)
_AGAIN = Remedy(
    command="openstack volume delete --force {volume}",
    why=f"{_LOG} Cinder then deletes the volume and its data again.",
)
_NEVER_MADE = Remedy(
    command="openstack volume set --state error {volume}; openstack volume delete {volume}",
    why=f"{_LOG} The volume was never created: this gives it up and deletes it.",
)
_HELD = _set("in-use", "First check with `virsh domblklist {server}` that the guest has the disk.")

#: The repair of `volume_status_differs`, by status, with and without attachments.
_STATUSES: dict[str, Remedy] = {
    **dict.fromkeys(("in-use", "detaching", "attaching", "reserved"), _FREE),
    **dict.fromkeys(("error_attaching", "error_detaching"), _FREE),
    **dict.fromkeys(("available, attached", "detaching, attached"), _HELD),
    **dict.fromkeys(("attaching, attached", "error_attaching, attached"), _HELD),
    **dict.fromkeys(("error_detaching, attached", "error, attached"), _HELD),
    "error_extending, attached": _HELD,
    "error_deleting": _AGAIN,
    "deleting": _AGAIN,
    "creating": _NEVER_MADE,
}
_AT_WORK = {
    "creating": _NEVER_MADE,
    "deleting": _AGAIN,
    **dict.fromkeys(("extending, attached", "retyping, attached"), _set("in-use", _LOG)),
    **dict.fromkeys(("extending", "retyping", "downloading"), _set("available", _LOG)),
}
_FAILURES = {
    **dict.fromkeys(
        ("error_extending", "error_backing-up", "error_restoring"),
        _set(
            "available", "`cinder message-list` has the error; a restored volume may be incomplete."
        ),
    ),
    "error_deleting": _AGAIN,
}
_LOOK = Remedy(why="No command is safe before you know the task: see the log of its cinder-volume.")
_WHOSE = "`virsh domblklist {server}` on {host} shows whether the guest has the disk."


def _kind(
    name: str,
    meaning: str,
    remedy: Remedy,
    cases: Mapping[str, Remedy] = MappingProxyType({}),
    *,
    lasts: bool = False,
) -> DifferenceClass:
    """A class that looks have too, with its severity there."""
    return DifferenceClass(
        name=name,
        severity=BY_NAME[name].severity,
        meaning=meaning,
        remedy=remedy,
        cases=cases,
        lasts=lasts,
    )


ATTACHED_TWICE = DifferenceClass(
    name="attached_twice",
    severity=Severity.CRITICAL,
    meaning="A volume that is not multi-attach has attachments of several servers: all may write.",
    remedy=Remedy(
        why="No command is safe before you know which guest writes: run `virsh domblklist` on both "
        "hosts, then delete the attachment of the other server."
    ),
)
VOLUME_FAILED = DifferenceClass(
    name="volume_failed",
    severity=Severity.INFO,
    meaning="A task of Cinder on the volume has failed, and no server has the volume.",
    remedy=Remedy(
        command="openstack volume delete {volume}",
        why="Only if its data is not needed: this deletes the volume. `cinder message-list` has "
        "the error.",
    ),
    cases=_FAILURES,
)
KINDS: dict[str, DifferenceClass] = {
    each.name: each
    for each in (
        DifferenceClass(
            name="owner_gone",
            severity=Severity.CRITICAL,
            meaning="Cinder has an attachment of a server that Nova does not have (404). "
            "Therefore any member of the project may delete it, in use or not "
            "(CVE-2023-2088). Until then the volume can be neither used nor deleted.",
            remedy=Remedy(
                command=_DELETE,
                why="First check that no host has a guest {server} (`virsh domstate`; host "
                "{host}): Cinder ends the export, and other servers may use the volume.",
            ),
        ),
        _kind(
            "reservation_unknown",
            "Cinder has reserved the volume for the server, and Nova has no mapping of it.",
            Remedy(command=_DELETE, why="This ends the reservation; no host uses it."),
        ),
        _kind(
            "attachment_unknown",
            "Cinder has an attachment of the server that a host may use, and Nova has no mapping "
            "with it. Nova answers 404 about it, so any member of the project may delete it, and "
            "the next reboot of the server deletes it.",
            Remedy(
                command=_DELETE,
                why=f"Only if the guest does not have the disk. {_WHOSE} If it does, shut the "
                "guest down first. Do not reboot it: Nova would delete the attachment.",
            ),
        ),
        _kind(
            "attachment_lost",
            "Nova has a mapping of the volume, and Cinder has no attachment for it. Cinder may "
            "give the volume to another server while the guest writes to it (CVE-2023-2088).",
            Remedy(
                command="openstack server migrate --live-migration {server}",
                why="A live migration creates a new attachment and keeps the disk. Nova refuses a "
                "detach (400). A reboot removes the mapping and the disk.",
            ),
        ),
        _kind(
            "attachment_ended",
            "Nova and Cinder show an attachment again that has ended in the ledger's log: a "
            "database of theirs was restored. The ledger does not follow it any more.",
            Remedy(
                command="openstack server migrate --live-migration {server}",
                why="A live migration creates a new attachment, which the ledger follows, and "
                "keeps the disk. So does a detach and a new attach by Nova, which also brings back "
                "the mapping. Nothing is wrong in Nova and Cinder.",
            ),
        ),
        _kind(
            "attachment_status_differs",
            "For a long time Cinder's attachment has not had the status that Nova's mapping needs.",
            Remedy(
                command=_COMPLETE,
                why=f"Only if the guest has the disk: Cinder then shows `attached`. {_WHOSE} If it "
                "does not, no command is safe: see the log of nova-compute.",
            ),
            lasts=True,
        ),
        _kind(
            "attachment_host_differs",
            "Cinder shows the volume on another host than the one where Nova has the guest.",
            Remedy(
                why="No command is safe: with a new attachment Nova's mapping would keep the old "
                "id. Check on both hosts which has the guest. If it is where Nova has it, "
                "shut it down, and detach and attach the volume by Nova."
            ),
        ),
        _kind(
            "volume_gone",
            "Nova has a mapping of a volume that Cinder does not have (404).",
            Remedy(
                why="No command is safe while the guest has the disk: Nova refuses to detach it "
                "(404). If the data exists, `cinder manage` imports it under a new id. If it "
                "is not needed, the mapping is deleted with the server."
            ),
        ),
        _kind(
            "volume_status_differs",
            "The volume's status does not fit its attachments, and no task is in progress.",
            _LOOK,
            cases=_STATUSES,
        ),
        _kind(
            "volume_stuck",
            "A task of Cinder on the volume has been in progress for a long time.",
            _LOOK,
            cases=_AT_WORK,
        ),
        _kind(
            "guest_twice",
            "The guest runs on two hosts: both write to its volumes.",
            Remedy(
                why="Stop the guest that is not where Nova has it, now: `virsh destroy {server}`."
            ),
        ),
        _kind(
            "guest_missing",
            "The host where Nova has the server does not have its guest.",
            Remedy(
                command="openstack server reboot --hard {server}",
                why="Nova defines the guest there again and starts it. First check that no other "
                "host has it: this list lacks hosts that were not surveyed.",
            ),
        ),
        _kind(
            "guest_elsewhere",
            "A host has a guest whose server is on another host in Nova.",
            Remedy(
                why="No command is safe before you know which guest runs. Remove a copy that is "
                "shut off by `virsh undefine {server}` on the host where Nova lacks it."
            ),
        ),
        _kind(
            "guest_of_deleted",
            "A host has a guest of a server that Nova does not have: deleted, or never Nova's.",
            Remedy(
                why="No command is safe before you know whose guest it is. If its server was "
                "deleted: `virsh destroy {server}` and `virsh undefine {server}` on {host}."
            ),
        ),
        _kind(
            "disk_missing",
            "The guest lacks the disk of a volume that is attached in Nova.",
            Remedy(
                command="openstack server reboot --hard {server}",
                why="Nova defines the guest again, with its disks. The guest is down meanwhile.",
            ),
        ),
        _kind(
            "disk_unknown",
            "The guest has the disk of a volume that Nova has not attached to its server.",
            Remedy(
                why="No command is safe: its owner may use the disk. After the owner has agreed: "
                "`virsh detach-disk {server}` on {host}."
            ),
        ),
        _kind(
            "disk_definition_differs",
            "The running guest and its definition have different disks: the next start changes it.",
            Remedy(
                command="openstack server reboot --hard {server}",
                why="Nova writes a new definition. The guest is down meanwhile.",
            ),
        ),
        _kind(
            "disk_source_differs",
            "The disk has the serial of one volume, and its source the name of another.",
            Remedy(
                why="No command is safe: it may be the data of another volume. Find out who wrote "
                "what, before you detach, migrate or start anything."
            ),
        ),
        _kind(
            "disk_size_differs",
            "The disk of the running guest is smaller than the volume in Cinder.",
            Remedy(
                command="openstack server reboot --hard {server}",
                why="The guest starts with the new size. It is down meanwhile.",
            ),
        ),
        _kind(
            "disk_unlabelled",
            "The guest has a disk without a serial whose source is a volume's.",
            Remedy(
                why="No command: it was attached without Nova. Find out by whom (`virsh dumpxml`)."
            ),
        ),
        _kind(
            "storage_left",
            "The host has a session, map, loop device or dm-crypt that no guest uses.",
            Remedy(
                why="No command is safe before you know who uses it: other volumes may share a "
                "session. On {host} close dm-crypt mappings (`cryptsetup close NAME`), then "
                "remove devices, then sessions."
            ),
        ),
        _kind(
            "secret_left",
            "The hypervisor holds the passphrase of a volume that is not attached there.",
            Remedy(why="`virsh secret-undefine` on {host}, once no guest there has the volume."),
        ),
        _kind(
            "paths_faulty",
            "A volume in use has no working path on its host.",
            Remedy(why="No command: check the fabric and the array."),
        ),
        ATTACHED_TWICE,
        VOLUME_FAILED,
    )
}


def remedy_of(kind: DifferenceClass, case: str | None, about: About) -> tuple[str | None, str]:
    """The repair: its command, if one is safe; and its effect, or why none is safe.

    A host of an attachment is what a member of the project called it, so it is quoted.
    """
    remedy = kind.cases.get(case or "", kind.remedy)
    names = ("volume", "server", "attachment")
    ids = {name: getattr(about, f"{name}_id") or "ID" for name in names}
    ids["host"] = shlex.quote(about.host or "unknown")
    return remedy.command and remedy.command.format(**ids), remedy.why.format(**ids)


def advice(name: str, differs: Mapping[str, Any], about: About) -> str:
    """As `remedy_of`, for a finding about an object of Nova, as a sentence."""
    cinder = differs.get("cinder")
    case = ""
    if isinstance(cinder, Mapping):  # of a disk it is its volume's size
        case = cinder.get("status", "") + (", attached" if cinder.get("attachments") else "")
    command, why = remedy_of(KINDS[name], case, about)
    typed = f"`{command}`: " if command else ""
    return f"It belongs to Nova, so the ledger does not repair it. {typed}{why}"
