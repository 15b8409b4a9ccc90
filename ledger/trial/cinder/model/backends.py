"""The backends of a simulated Cinder, and the volume types that choose one.

A type is named after its backend; the same name with "-multi" makes multi-attach volumes.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import NAMESPACE_OID, uuid5

from ledger.trial.cinder.model.connection import DRIVERS, check_driver

MULTI = "-multi"


@dataclass(frozen=True, kw_only=True)
class Backend:
    """Where volumes are.  Each volume gets its `shared_targets` and `service_uuid`."""

    name: str
    driver: str
    shared_targets: bool | None = False
    multiattach: bool = True

    def __post_init__(self) -> None:
        check_driver(self.driver)

    @property
    def service_uuid(self) -> str:
        return str(uuid5(NAMESPACE_OID, f"cinder-volume {self.name}"))

    @property
    def host(self) -> str:
        """Its name in `os-migrate_volume`."""
        return f"sim@{self.name}#{self.name}"


def default_backends() -> dict[str, Backend]:
    """One of each driver, named like it."""
    return {driver: Backend(name=driver, driver=driver) for driver in DRIVERS}


def split_type(volume_type: str) -> tuple[str, bool]:
    """The backend's name, and whether volumes of this type are multi-attach."""
    return volume_type.removesuffix(MULTI), volume_type.endswith(MULTI)


def type_of(backend: str, *, multiattach: bool) -> str:
    return backend + (MULTI if multiattach else "")
