"""The Brick port over os-brick.

Theory of operation.  os-brick is imported only here, when the adapter is created, because the
import takes most of a second.  As root its privileged functions run in this process; otherwise a
helper command (`privsep_helper`) starts its privileged daemon.  It is called from plain threads,
and nothing is monkey-patched.

The protocol decides what a volume is for a guest.  RBD is a network disk that QEMU opens itself, so
nothing is connected on the host.  A volume of a file system is a file below its mount point.
Everything else is a block device, which a guest gets by a stable name (names.py); the record keeps
os-brick's own name for the disconnect.

os-brick gets a copy of the connection information, because it removes keys from NVMe's older form.
A disconnect never forces: a failed flush means that data is not written yet, so the device stays
and the error is reported (os-brick LP 1502534).  It gets the device that the connect returned, and
the multipath setting of that time: from these os-brick decides what to flush, the multipath or a
single path, which may be dead (LP 1785669).
"""

from __future__ import annotations

import os
import socket
import stat
import warnings
from pathlib import Path
from typing import Any

import structlog

from host_agent.config import BrickSection
from host_agent.shared.contract.messages import ErrorKind
from host_agent.shared.contract.ports import ConnectionInfo, Encryption, OtherVolumeError, PortError
from host_agent.storage import connection, identity, names
from host_agent.storage.luks import format_device, payload_offset

# oslo.privsep imports eventlet, which warns at import and would load its own DNS resolver: a fifth
# of the agent's start time and memory, for nothing, as nothing is monkey-patched.
os.environ.setdefault("EVENTLET_NO_GREENDNS", "yes")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import os_brick
    import os_brick.exception
    import os_brick.initiator.connector
    import os_brick.privileged
    import os_brick.privileged.rootwrap
    import os_brick.utils
    from os_brick.initiator.connectors import nvmeof
    from oslo_concurrency import lockutils, processutils
    from oslo_config import cfg

_LOG = structlog.get_logger(__name__)

#: Protocols whose "device" is a file below a mount point.
FILE_SYSTEMS = frozenset({"nfs", "glusterfs", "scality", "quobyte", "vzstorage"})
#: The first bytes of a qcow2 file.
QCOW2 = b"QFI\xfb"

#: The types of device attributes that a record can store.
_PLAIN = (str, int, float, bool)

#: The exit status of `cryptsetup isLuks` for "no"; any other means that it could not check.
NO_LUKS = 1

_NEVER = (
    os_brick.exception.InvalidConnectorProtocol,
    os_brick.exception.ProtocolNotSupported,
    os_brick.exception.Invalid,
)
_LATER = (
    os_brick.exception.VolumeDeviceNotFound,
    os_brick.exception.VolumePathsNotFound,
    os_brick.exception.TargetPortalNotFound,
    os_brick.exception.FailedISCSITargetPortalLogin,
)


class OsBrick:
    """os-brick on this host.  Its own locks are in a subdirectory of `lock_path`."""

    def __init__(self, settings: BrickSection, host: str, lock_path: Path) -> None:
        self._settings = settings
        self._host = host
        self._ip = settings.my_ip or _address_of(socket.gethostname())
        cfg.CONF([], project="attachment-ledger-agent", default_config_files=[])
        locks = lock_path / "os-brick"
        locks.mkdir(parents=True, exist_ok=True)
        lockutils.set_defaults(str(locks))
        os_brick.setup(cfg.CONF)  # takes the path from there
        if os.geteuid() == 0:
            os_brick.privileged.default.set_client_mode(False)
            os_brick.privileged.brick_privsep_hide_output.set_client_mode(False)
        elif settings.privsep_helper:
            cfg.CONF.set_override("helper_command", settings.privsep_helper, "privsep_osbrick")

    def drivers(self) -> list[str]:
        """The protocols that os-brick has a connector for on this machine."""
        return sorted(name.lower() for name in _factory_module().get_connector_mapping())

    def connector(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = _factory_module().get_connector_properties(
                self._settings.root_helper,
                self._ip,
                self._settings.use_multipath,
                self._settings.enforce_multipath,
                host=self._host,
            )
        except Exception as error:
            # Reading only, so nothing has happened; multipathd may be back later.
            text = f"This host's connector properties cannot be read: {_text(error)}"
            raise PortError(ErrorKind.RETRYABLE, "no_connector", text) from error
        return found

    def connect(self, info: ConnectionInfo) -> dict[str, Any]:
        kind = connection.driver(info)
        if kind == "rbd":
            source = connection.network_source(
                info,
                user=self._settings.rbd_user or None,
                secret_uuid=self._settings.rbd_secret_uuid or None,
            )
            return {**source, "format": "raw"}
        try:
            multipath = self._settings.use_multipath
            device = self._connector_for(kind, info, multipath=multipath).connect_volume(dict(info))
        except Exception as error:
            raise _connect_error(error) from error
        path = device.get("path") if isinstance(device, dict) else None
        if not isinstance(path, str):
            raise PortError(
                ErrorKind.FINAL,
                "no_device_path",
                f"os-brick gives no path for a volume of type {kind}: no guest can use it here.",
            )
        source = _source(path)
        plain = {key: value for key, value in device.items() if isinstance(value, _PLAIN)}
        plain["use_multipath"] = multipath
        if source["type"] == "block":
            _refuse_other_volume(plain)
            stable = names.stable(path)
            late = stable is not None and plain.get("scsi_wwn") == ""  # os-brick saw no udev name
            if multipath and (late or names.is_mere_path(path)):
                raise _no_map(path)
            if stable is not None:
                source["path"] = plain["stable_path"] = stable
            else:
                _LOG.warning("device_without_stable_name", path=path)
        return {**source, "format": _format(source, info), "device": plain}

    def format_luks(self, source: dict[str, Any], passphrase: str, encryption: Encryption) -> None:
        if source["type"] != "block":  # Cinder has formatted it; RBD has no path
            return
        helper, path = self._settings.root_helper, source["path"]
        if _is_luks(helper, path):
            return
        try:
            format_device(helper, path, passphrase, encryption)
        except Exception as error:
            text = f"The volume could not be formatted as LUKS at {path}: {_text(error)}"
            raise PortError(ErrorKind.UNKNOWN, "format_failed", text) from error

    def size(self, source: dict[str, Any]) -> int | None:
        if source["type"] != "block":
            return None
        helper, path = self._settings.root_helper, source["path"]
        try:
            output, _ = os_brick.privileged.rootwrap.execute(
                *("blockdev", "--getsize64", path), run_as_root=True, root_helper=helper
            )
            return int(output)
        except Exception as error:
            raise _extend_error(error) from error

    def extend(self, info: ConnectionInfo, source: dict[str, Any]) -> int | None:
        kind, helper = connection.driver(info), self._settings.root_helper
        if kind == "rbd" or kind in FILE_SYSTEMS:
            return None
        try:
            connector = self._connector_for(kind, info, multipath=self._settings.use_multipath)
            size = connector.extend_volume(dict(info))
            if size is None:
                raise os_brick.exception.VolumePathsNotFound  # noqa: TRY301 - as os-brick has it
            head = payload_offset(helper, source["path"]) if info.get("encrypted") else 0
        except Exception as error:
            raise _extend_error(error) from error
        return int(size) - head

    def disconnect(self, info: ConnectionInfo, device: dict[str, Any] | None = None) -> None:
        kind = connection.driver(info)
        if kind == "rbd":
            return
        known = dict(device or {})
        multipath = known.pop("use_multipath", self._settings.use_multipath)
        for own in ("stable_path", OtherVolumeError.OTHER):
            known.pop(own, None)
        try:
            connector = self._connector_for(kind, info, multipath=multipath)
            if not known and kind not in FILE_SYSTEMS:
                known = _found(connector, info)
            connector.disconnect_volume(dict(info), known or None)
        except Exception as error:
            raise _disconnect_error(error) from error

    def _connector_for(self, kind: str, info: ConnectionInfo, *, multipath: bool) -> Any:
        options: dict[str, Any] = {"conn": info}
        if kind in FILE_SYSTEMS:
            # The mount point in Cinder's information is of another machine.
            base = Path(self._settings.mount_point_base)
            base.mkdir(parents=True, exist_ok=True)
            options[f"{kind}_mount_point_base"] = str(base)
        return _factory_module().InitiatorConnector.factory(
            kind.upper(),
            self._settings.root_helper,
            use_multipath=multipath,
            device_scan_attempts=self._settings.device_scan_attempts,
            **options,
        )


def _factory_module() -> Any:
    return os_brick.initiator.connector


def _address_of(name: str) -> str:
    try:
        return socket.gethostbyname(name)
    except OSError:
        return "127.0.0.1"


def _source(path: str) -> dict[str, Any]:
    """A Disk's source for `path`; os-brick does not always check that it exists."""
    try:
        mode = Path(path).stat().st_mode
    except OSError as error:
        raise _unusable(path, error) from error
    if stat.S_ISBLK(mode):
        return {"type": "block", "path": path}
    if stat.S_ISREG(mode):
        return {"type": "file", "path": path}
    raise PortError(ErrorKind.FINAL, "bad_device", f"{path} is neither a block device nor a file.")


def _found(connector: Any, info: ConnectionInfo) -> dict[str, Any]:
    """The device of a connection of which there is no record, as nova-compute has made it.

    os-brick (7.1.1) takes no dictionary here for NVMe, and disconnects nothing there without a
    path.  Of a multipath it names the paths, of which the first may be dead (LP 1785669).  An
    encrypted device has a link of os-brick's, which a disconnect by another name leaves.
    """
    asked: Any = dict(info)
    if isinstance(connector, nvmeof.NVMeOFConnector):  # it has no maps, but a RAID has its name
        paths = connector.get_volume_paths(nvmeof.NVMeOFConnProps(asked, find_controllers=True))
    else:
        paths = [names.map_over(each) for each in connector.get_volume_paths(asked)]
    path = min(paths, key=lambda each: not each.startswith("/dev/dm-"), default=None)
    if path is None:
        return {}
    if info.get("encrypted"):
        links = Path(os_brick.utils.CUSTOM_LINK_PREFIX)
        found = map(str, links.parent.glob(f"{links.name}+*"))
        path = next((each for each in found if names.map_over(each) == path), path)
    return {"type": "block", "path": path}


def _refuse_other_volume(device: dict[str, Any]) -> None:
    """FINAL, so that the connection is undone, and the next attach scans the device again."""
    path = device["path"]
    if others := identity.other_volumes(path):
        text = (
            f"The kernel knows {', '.join(others)} at {path} as another volume, which had the "
            "number of this one's LUN before. No guest gets it. The host removes it, unless a "
            "guest has it still: stop that guest, for it writes to a volume that is not its own. "
            "Then attach again."
        )
        raise OtherVolumeError(text, device)


def _no_map(path: str) -> PortError:
    """os-brick (7.1.1) returns a single path if no map appears in time, for example if udev hangs.

    It asks multipathd only by the WWN in udev's names, and returns no `scsi_wwn` if these come
    later, for example from a slow target.
    """
    return PortError(
        ErrorKind.RETRYABLE,
        "map_missing",
        f"os-brick has connected the volume, and found no multipath map of {path}: "
        "udev has named that disk too late or not yet, or the map came later.",
    )


def _unusable(path: str, error: OSError) -> PortError:
    return PortError(
        ErrorKind.RETRYABLE,
        "device_missing",
        f"os-brick has connected the volume, but {path} cannot be used: {error.strerror}.",
    )


def _format(source: dict[str, Any], info: ConnectionInfo) -> str:
    """The driver's format; but Cinder's NFS driver (29) says raw for encrypted files in qcow2.

    So for encrypted files the first bytes decide.  Never for others: a guest can write anything to
    the beginning of a raw file, but not to that of an encrypted one.
    """
    if info.get("encrypted") and source["type"] == "file" and _begins_with(source["path"], QCOW2):
        return "qcow2"
    return connection.image_format(info)


def _begins_with(path: str, magic: bytes) -> bool:
    try:
        with Path(path).open("rb") as file:
            return file.read(len(magic)) == magic
    except OSError as error:
        raise _unusable(path, error) from error


def _is_luks(helper: str, path: str) -> bool:
    """Whether it is LUKS.  os-brick takes every failed check for a "no", and would then format."""

    def look(*command: str, **options: Any) -> Any:
        try:
            return os_brick.privileged.rootwrap.execute(*command, **options)
        except processutils.ProcessExecutionError as error:
            if error.exit_code == NO_LUKS:
                raise
            text = f"Whether {path} is a LUKS volume cannot be determined: {_text(error)}"
            raise PortError(ErrorKind.RETRYABLE, "luks_unknown", text) from error

    return bool(os_brick.encryptors.luks.is_luks(helper, path, execute=look))


def _text(error: Exception) -> str:
    """One line; the caller's reports mask secrets in it."""
    if isinstance(error, processutils.ProcessExecutionError):
        reason = " ".join(str(error.stderr or error.description).split())
        ended = "was not run" if error.exit_code is None else f"ended with {error.exit_code}"
        return f"{error.cmd} {ended}: {reason}"
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _connect_error(error: Exception) -> PortError:
    text = f"os-brick could not connect the volume: {_text(error)}"
    if isinstance(error, PortError):
        return error
    if isinstance(error, _NEVER):
        return PortError(ErrorKind.FINAL, "not_connectable", text)
    if isinstance(error, (KeyError, ValueError)):
        return PortError(ErrorKind.FINAL, "bad_connection_info", text)
    if isinstance(error, _LATER):
        return PortError(ErrorKind.RETRYABLE, "connect_failed", text)
    return PortError(ErrorKind.UNKNOWN, "connect_failed", text)  # it may be half done


def _extend_error(error: Exception) -> PortError:
    """A rescan changes no data, so it is safe to retry."""
    text = f"The host cannot see the volume's new size: {_text(error)}"
    never = isinstance(error, (*_NEVER, NotImplementedError))
    kind = ErrorKind.FINAL if never else ErrorKind.RETRYABLE
    return PortError(kind, "extend_failed", text)


def _disconnect_error(error: Exception) -> PortError:
    if isinstance(error, PortError):
        return error
    text = f"os-brick could not disconnect the volume: {_text(error)}"
    if isinstance(error, _NEVER):
        return PortError(ErrorKind.FINAL, "not_connectable", text)
    code = "flush_failed" if "flush" in text.lower() else "disconnect_failed"
    return PortError(ErrorKind.UNKNOWN, code, text)
