"""What a difference beside Nova means, and what mends it: the words of `beside_nova`, as a table.

A name that a class of a look has means the same (`classes`).  What mends it is a command of Nova's
or Cinder's own with what it does, or why there is none that is safe.  `{volume}`, `{server}`,
`{attachment}` and `{host}` are filled in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from aggregates.base import About
from handlers.drift.classes import BY_NAME
from handlers.drift.kinds import Severity

#: What Nova calls its side of a finding; the rows call it the ledger's.
NOVA = "nova"


@dataclass(frozen=True, kw_only=True)
class Mend:
    """A command, and what it does; without one, why none is safe and what a person finds out."""

    why: str
    command: str | None = None


@dataclass(frozen=True, kw_only=True)
class DifferenceClass:
    """A class of difference.  `lasts`: only once it is so for `--stuck`.

    `cases`: what mends it, where that depends on a status; `mend`: in all other cases.
    """

    name: str
    rank: int
    severity: Severity
    meaning: str
    mend: Mend
    cases: Mapping[str, Mend] = field(default_factory=dict)
    lasts: bool = False


_DELETE = "openstack --os-volume-api-version 3.27 volume attachment delete {attachment}"
_COMPLETE = "openstack --os-volume-api-version 3.44 volume attachment complete {attachment}"
_SET = "openstack volume set --state {state} {volume}"
_ROW = "It writes Cinder's row alone: the back-end is not asked, and no host is."
_NOBODY = "First see that no host has a session or a disk of it."
_LOG = "First see in the log of its cinder-volume that nothing is at it any more."

#: Statuses that do not pass by themselves, so one need not wait whether they last.
ENDED = frozenset(
    {"available", "in-use", "error", "error_deleting", "error_extending", "error_restoring"}
    | {"error_backing-up", "error_managing", "error_attaching", "error_detaching"}
)


def _set(state: str, first: str, *, detached: bool = False) -> Mend:
    command = _SET.replace("{state}", f"{state} --detached" if detached else state)
    return Mend(command=command, why=f"{first} {_ROW}")


_FREE = _set("available", _NOBODY, detached=True)
_AGAIN = Mend(
    command="openstack volume delete --force {volume}",
    why=f"{_LOG} Cinder deletes the volume and its data, again.",
)
_NEVER_MADE = Mend(
    command="openstack volume set --state error {volume}; openstack volume delete {volume}",
    why=f"{_LOG} The volume was never made: it is given up, and deleted.",
)
_HELD = _set("in-use", "First see by `virsh domblklist {server}` that the guest has its disk.")

#: What mends a volume whose status does not fit, by its status, with and without attachments.
_STATUSES: dict[str, Mend] = {
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
            "available", "What failed is in `cinder message-list`; a restored volume may be half."
        ),
    ),
    "error_deleting": _AGAIN,
}
_LOOK = Mend(why="No command is safe unseen: what it is at is in the log of its cinder-volume.")
_WHOSE = "`virsh domblklist {server}` on {host} says whether the guest has the disk."


def _kind(
    name: str,
    meaning: str,
    mend: Mend,
    cases: Mapping[str, Mend] = MappingProxyType({}),
    *,
    lasts: bool = False,
) -> DifferenceClass:
    """One that a look has, too: as bad as there."""
    severity = BY_NAME[name].severity
    return DifferenceClass(
        name=name,
        rank=_RANKS[severity],
        severity=severity,
        meaning=meaning,
        mend=mend,
        cases=cases,
        lasts=lasts,
    )


_RANKS = {Severity.CRITICAL: 1, Severity.WARNING: 2, Severity.INFO: 3}

ATTACHED_TWICE = DifferenceClass(
    name="attached_twice",
    rank=1,
    severity=Severity.CRITICAL,
    meaning="A volume that is for one server alone has attachments of several: both may write.",
    mend=Mend(
        why="None is safe before you know which guest writes: `virsh domblklist` on both hosts; "
        "then delete the attachment of the other."
    ),
)
VOLUME_FAILED = DifferenceClass(
    name="volume_failed",
    rank=3,
    severity=Severity.INFO,
    meaning="Something that Cinder did with the volume has failed, and nobody has it.",
    mend=Mend(
        command="openstack volume delete {volume}",
        why="Only if its data is not needed: Cinder deletes it. What failed is in "
        "`cinder message-list`.",
    ),
    cases=_FAILURES,
)
KINDS: dict[str, DifferenceClass] = {
    each.name: each
    for each in (
        DifferenceClass(
            name="owner_gone",
            rank=0,  # any member of the project can pull it (CVE-2023-2088)
            severity=Severity.CRITICAL,
            meaning="Cinder has an attachment of a server that Nova does not have (404): so any "
            "member of the project may delete it, in use or not (CVE-2023-2088); until then its "
            "volume can be neither used nor deleted.",
            mend=Mend(
                command=_DELETE,
                why="First see that no host has a guest {server} (`virsh domstate`; host {host}): "
                "Cinder ends the export, and frees the volume for others.",
            ),
        ),
        _kind(
            "reservation_unknown",
            "Cinder reserves the volume for the server, and Nova has no mapping of it.",
            Mend(command=_DELETE, why="It gives the reservation back; no host uses it."),
        ),
        _kind(
            "attachment_unknown",
            "Cinder has an attachment of the server that a host may use, and Nova has no mapping "
            "by it: Nova says 404 of it, so a member may delete it, and the server's next reboot "
            "does.",
            Mend(
                command=_DELETE,
                why=f"Only if the guest does not have it. {_WHOSE} If it has: shut the guest down "
                "first, and do not reboot it, for Nova then deletes the attachment.",
            ),
        ),
        _kind(
            "attachment_lost",
            "Nova has the volume mapped, and Cinder has no attachment for it: the volume may be "
            "given to somebody else while the guest writes to it (CVE-2023-2088).",
            Mend(
                command="openstack server migrate --live-migration {server}",
                why="A live migration makes a new attachment, and keeps the disk. A detach is "
                "refused (400). A reboot drops the mapping, and the disk with it.",
            ),
        ),
        _kind(
            "attachment_status_differs",
            "Cinder's attachment has not become what Nova's mapping needs, for long.",
            Mend(
                command=_COMPLETE,
                why=f"Only if the guest has the disk: Cinder then says `attached`. {_WHOSE} If it "
                "has not, none is safe: what hangs is in the log of nova-compute.",
            ),
            lasts=True,
        ),
        _kind(
            "attachment_host_differs",
            "Cinder says that another host has the volume than the one where Nova has the guest.",
            Mend(
                why="None is safe: an attachment that is made anew leaves Nova's mapping with the "
                "old id. See on both hosts which has the guest; if it is where Nova says, shut it "
                "down, and have Nova detach the volume and attach it again."
            ),
        ),
        _kind(
            "volume_gone",
            "Nova has a volume mapped that Cinder does not have (404).",
            Mend(
                why="None is safe while the guest has the disk: Nova refuses to detach it (404). "
                "If the data is there, `cinder manage` brings it back under a new id; if it is "
                "not needed, the mapping goes with the server."
            ),
        ),
        _kind(
            "volume_status_differs",
            "The volume's status does not fit its attachments, and nothing is under way.",
            _LOOK,
            cases=_STATUSES,
        ),
        _kind(
            "volume_stuck",
            "Cinder has been at work on the volume for long, without changing anything.",
            _LOOK,
            cases=_AT_WORK,
        ),
        _kind(
            "guest_twice",
            "The guest runs on two hosts: both write to its volumes.",
            Mend(why="Stop the one that is not where Nova has it, now: `virsh destroy {server}`."),
        ),
        _kind(
            "guest_missing",
            "The host where Nova has the server does not have its guest.",
            Mend(
                command="openstack server reboot --hard {server}",
                why="Nova defines it there anew and starts it. First see that no other host has "
                "it: a host that was not surveyed is not in this list.",
            ),
        ),
        _kind(
            "guest_elsewhere",
            "A host has a guest whose server Nova has on another host.",
            Mend(
                why="None is safe unseen: find out which runs. A copy that is off goes by "
                "`virsh undefine {server}` on the host where Nova does not have it."
            ),
        ),
        _kind(
            "guest_of_deleted",
            "A host has a guest of a server that Nova does not have: deleted, or never Nova's.",
            Mend(
                why="None is safe unseen: it may be somebody's own. If its server was deleted: "
                "`virsh destroy {server}` and `virsh undefine {server}` on {host}."
            ),
        ),
        _kind(
            "disk_missing",
            "The guest does not have a disk of a volume that Nova has mapped and attached.",
            Mend(
                command="openstack server reboot --hard {server}",
                why="Nova makes the guest anew, with its disks. The guest is down meanwhile.",
            ),
        ),
        _kind(
            "disk_unknown",
            "The guest has a disk of a volume that Nova does not have mapped to its server.",
            Mend(
                why="None is safe: nothing is taken from a running guest unasked. Once its owner "
                "lets go of it: `virsh detach-disk {server}` on {host}."
            ),
        ),
        _kind(
            "disk_definition_differs",
            "The running guest and its definition differ about a disk: its next start changes it.",
            Mend(
                command="openstack server reboot --hard {server}",
                why="Nova writes the definition anew. The guest is down meanwhile.",
            ),
        ),
        _kind(
            "disk_source_differs",
            "The disk is labelled as one volume, and its source has the name of another.",
            Mend(
                why="None is safe: it may be another volume's data. Find out who wrote what before "
                "anything is detached, migrated or started."
            ),
        ),
        _kind(
            "disk_size_differs",
            "The running guest has less of the volume than Cinder says that there is.",
            Mend(
                command="openstack server reboot --hard {server}",
                why="The guest is started with the new size. It is down meanwhile.",
            ),
        ),
        _kind(
            "disk_unlabelled",
            "The guest has a disk without a serial whose source is a volume's.",
            Mend(why="None: somebody attached it past Nova. Find out who (`virsh dumpxml`)."),
        ),
        _kind(
            "storage_left",
            "The host has a session, map, loop device or dm-crypt that no guest uses.",
            Mend(
                why="None is safe unseen: it may be somebody else's, or a session that others "
                "share. Close what dm-crypt has open (`cryptsetup close NAME`), remove devices, "
                "then sessions, on {host}."
            ),
        ),
        _kind(
            "secret_left",
            "The hypervisor holds the passphrase of a volume that is not attached there.",
            Mend(why="`virsh secret-undefine` on {host}, once no guest there has the volume."),
        ),
        _kind(
            "paths_faulty",
            "A volume in use has no working path on its host.",
            Mend(why="None: look at the fabric and the array."),
        ),
        ATTACHED_TWICE,
        VOLUME_FAILED,
    )
}


def mend_of(kind: DifferenceClass, case: str | None, about: About) -> tuple[str | None, str]:
    """The command that mends it, if one is safe, and what it does or why there is none."""
    mend = kind.cases.get(case or "", kind.mend)
    names = ("volume", "server", "attachment")
    ids = {name: getattr(about, f"{name}_id") or "ID" for name in names}
    ids["host"] = about.host or "unknown"
    return mend.command and mend.command.format(**ids), mend.why.format(**ids)


def advice(name: str, differs: Mapping[str, Any], about: About) -> str:
    """The same for a finding of what is Nova's, in a sentence."""
    cinder = differs.get("cinder") or {}
    case = cinder.get("status", "") + (", attached" if cinder.get("attachments") else "")
    command, why = mend_of(KINDS[name], case, about)
    return f"It is Nova's, so nothing of ours mends it. {f'`{command}`: ' if command else ''}{why}"
