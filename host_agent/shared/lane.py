"""A lane: one volume of one server, as requests, plans, commands and host agents speak of it.

One type from the request that names a volume to the command that a host gets.  It is the
leaf that aggregates, handlers and agents share; its JSON is stored in the log and sent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

from host_agent.shared.wire import may, take


@dataclass(frozen=True, kw_only=True)
class LaneSide:
    """One of the two attachments of a lane that moves: what differs between them."""

    volume_id: str = ""  # "": the lane's own
    attachment_id: str | None = None
    host: str | None = None
    disk: dict[str, Any] | None = None

    @classmethod
    def from_wire(cls, data: Any) -> Self:
        return cls(
            volume_id=may(data, "volume_id", str) or "",
            attachment_id=may(data, "attachment_id", str),
            host=may(data, "host", str),
            disk=may(data, "disk", dict),
        )


@dataclass(frozen=True, kw_only=True)
class Lane:
    """One volume of one server: everything a host needs to know about it.

    No secrets: connection information is fetched from Cinder by `attachment_id`.

    In a plan a lane that moves, or is swapped, has two sides: what the server has now and,
    as `new`, what it is to have.  A command is about one side of it (see `side`).
    """

    server_id: str
    volume_id: str  # "": still to be made
    bdm_id: str
    attachment_id: str | None
    device_name: str | None  # without /dev/, e.g. "vdb"
    multiattach: bool = False
    tag: str | None = None
    boot_index: int | None = None
    delete_on_termination: bool = False
    #: The id the guest knows the disk by.  It stays when the volume behind it changes.
    serial: str | None = None
    #: The host that holds the attachment, where a flow's lanes are on several.
    host: str | None = None
    #: How the host sees the volume, as its `volume_connect` told: a ports.Disk's source,
    #: and "format", "discard", "readonly".
    disk: dict[str, Any] | None = None
    #: Made by Cinder's old calls: no attachment of Cinder's new kind stands behind it.
    legacy: bool = False
    #: In a command of a move or a swap: the pair's other attachment, new or old.
    other: LaneSide | None = None
    #: Attachments of this (volume, server) that the ledger knows: no orphans.
    known: tuple[str, ...] = ()
    #: How to make the volume, if `volume_id` is "": the service creates it (boot).
    create: dict[str, Any] | None = None
    #: In a plan: the side that the server is to have.
    new: LaneSide | None = None

    @property
    def disk_serial(self) -> str:
        """The id the guest knows the disk by."""
        return self.serial or self.volume_id

    @property
    def volume_ids(self) -> set[str]:
        """The volumes of both sides, as far as they exist."""
        return {self.volume_id, self.new.volume_id if self.new else ""} - {""}

    @property
    def attachment_ids(self) -> set[str]:
        """The attachments of both sides, as far as they are known."""
        ids = {self.attachment_id, self.new.attachment_id if self.new else None}
        return {id_ for id_ in ids if id_ is not None}

    def side(self, *, new: bool) -> Self:
        """One side of a plan's lane, as a command has it: the other one is `other`."""
        if self.new is None:
            return self
        current = LaneSide(**{name: getattr(self, name) for name in _OF_A_SIDE})
        coming = replace(self.new, volume_id=self.new.volume_id or self.volume_id)
        mine, others = (coming, current) if new else (current, coming)
        return replace(self, **vars(mine), new=None, other=others)

    def learn(self, outputs: dict[str, Any], *, new: bool = False) -> Self:
        """With what a step that works on one of its sides found out (see Report)."""
        facts = {name: outputs[name] for name in _LEARNT if name in outputs}
        if new and facts:
            facts = {"new": replace(self.new or LaneSide(), **facts)}
        if "device_name" in outputs:  # of both sides: the guest has one disk at a time
            facts["device_name"] = outputs["device_name"]
        return replace(self, **facts) if facts else self

    def to_wire(self) -> dict[str, Any]:
        wire = {**vars(self), "known": list(self.known)}
        wire["other"] = dict(vars(self.other)) if self.other else None
        del wire["new"]
        if self.new is not None:
            wire["new"] = {name: value for name, value in vars(self.new).items() if value}
        return wire

    @classmethod
    def from_wire(cls, data: Any) -> Self:
        text, optional = str, (str, type(None))
        return cls(
            server_id=take(data, "server_id", text),
            volume_id=take(data, "volume_id", text),
            bdm_id=take(data, "bdm_id", text),
            attachment_id=take(data, "attachment_id", optional),
            device_name=take(data, "device_name", optional),
            multiattach=take(data, "multiattach", bool),
            tag=take(data, "tag", optional),
            boot_index=take(data, "boot_index", (int, type(None))),
            delete_on_termination=take(data, "delete_on_termination", bool),
            # From here on: newer than plans that may still be stored.
            serial=may(data, "serial", str),
            host=may(data, "host", str),
            disk=may(data, "disk", dict),
            legacy=may(data, "legacy", bool) or False,
            other=LaneSide.from_wire(data["other"]) if data.get("other") else None,
            known=tuple(may(data, "known", list) or ()),
            create=may(data, "create", dict),
            new=None if data.get("new") is None else LaneSide.from_wire(data["new"]),
        )


#: What each side of a lane has of its own; and what of it steps find out.
_OF_A_SIDE = tuple(LaneSide.__dataclass_fields__)
_LEARNT = ("volume_id", "attachment_id", "disk")
