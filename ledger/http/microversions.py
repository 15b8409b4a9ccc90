"""Nova's microversions: which one a request speaks, by either header.

Up to NOVA they mean what they mean there.  The one right above it is this service's own:
boot volumes (S2), which Nova has never had.

`OpenStack-API-Version: compute 2.89` is the newer header and wins;
`X-OpenStack-Nova-API-Version: 2.89` is all that novaclient sends below 2.27.
No header means 2.1.  Answers repeat both, and say that they vary by them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ledger.http.problem import ApiError, not_found

Version = tuple[int, int]

MIN: Version = (2, 1)
NOVA: Version = (2, 104)  # the newest of Nova's that is mirrored
MAX: Version = (2, 105)

#: What changes where (Nova's REST API version history); handlers compare with these.
VOLUMES_ATTACHED_DELETE = (2, 3)  # volumes_attached tells delete_on_termination
LOCKED = (2, 9)
FORCED_DOWN = (2, 11)
EVACUATE_WITHOUT_PASSWORD = (2, 14)
DESCRIPTION = (2, 19)
VOLUMES_OF_SHELVED = (2, 20)  # servers are attached and detached
ACTIONS_OF_DELETED = (2, 21)  # instance actions of servers that are gone
FORCE_COMPLETE = (2, 22)
SERVER_MIGRATIONS = (2, 23)
ABORT = (2, 24)
SERVER_TAGS = (2, 26)
CPU_INFO = (2, 28)  # of a hypervisor as an object
TAG_OF_DISK = (2, 32)  # of a new server's, and by a mistake of Nova's in that version alone
TAG_OF_DISK_LOST = (2, 33)
HYPERVISOR_PAGES = (2, 33)
NETWORKS_REQUIRED = (2, 37)  # of a new server, and "auto" and "none"
STATUS_CHECKED = (2, 38)  # servers by a status that there is not
TAG_OF_DISK_AGAIN = (2, 42)
FLAVOR_EMBEDDED = (2, 47)
TAG_REQUEST = (2, 49)
EVENTS_FOR_ALL = (2, 51)  # the events of an instance action, not only for admins
TAGS_OF_NEW = (2, 52)  # servers
HYPERVISOR_UUID = (2, 53)
REBUILT_KEY = (2, 54)
FLAVOR_DESCRIPTION = (2, 55)
WITHOUT_PERSONALITY = (2, 57)
REBUILT_USER_DATA = (2, 57)
ACTION_PAGES = (2, 58)
MIGRATION_UUID = (2, 59)
MULTIATTACH = (2, 60)
FLAVOR_SPECS = (2, 61)
EVENT_HOST = (2, 62)
TRUSTED_CERTIFICATES = (2, 63)
CHANGES_BEFORE = (2, 66)
VOLUME_TYPE = (2, 67)
TAG_SHOWN = (2, 70)
SERVER_GROUPS = (2, 71)
LOCKED_FILTER = (2, 73)
LOCKED_REASON = (2, 73)
HOST_REQUESTED = (2, 74)
SERVERS_OF_NONE = (2, 75)  # of a hypervisor without any: an empty list
FLAVOR_SWAP_NUMBER = (2, 75)
CHANGES_SHOWN_WHOLE = (2, 75)  # servers in answers to PUT and rebuild
DELETE_ON_TERMINATION = (2, 79)
MIGRATION_USER = (2, 80)
EVENT_DETAILS = (2, 84)
UPDATE = (2, 85)
HYPERVISOR_UPTIME = (2, 88)
ATTACHMENT_ID = (2, 89)
HOSTNAME = (2, 90)
REIMAGE = (2, 93)  # a rebuild writes its image to the root volume
FULL_HOSTNAME = (2, 94)
EVACUATE_TO_STOPPED = (2, 95)
PINNED_ZONE_SHOWN = (2, 96)
SCHEDULER_HINTS = (2, 100)
ASYNC_ATTACH = (2, 101)
FLAVOR_NAME = (2, 102)
FLAVOR_WITHOUT_RXTX = (2, 102)
PINNED_ZONE = (2, 104)
ROOT_VOLUMES = MAX  # `is_root` in attach, `boot_index` shown, root volumes detached

STANDARD_HEADER = "OpenStack-API-Version"
LEGACY_HEADER = "X-OpenStack-Nova-API-Version"
_SERVICE = "compute"
_FORM = re.compile(r"([1-9]\d{0,8})\.([1-9]\d{0,8}|0)\Z", re.ASCII)


def requested(headers: Mapping[str, str]) -> Version:
    """The version a request speaks.  ApiError 400 if malformed, 406 if out of range."""
    text = _of_compute(headers.get(STANDARD_HEADER, "")) or headers.get(LEGACY_HEADER, "").strip()
    if not text:
        return MIN
    if text.lower() in {"latest", "2.latest"}:
        return MAX
    match = _FORM.match(text)
    if match is None:
        raise ApiError(
            400,
            "microversion_malformed",
            f"API Version String {text} is of invalid format. Must be of format MajorNum.MinorNum.",
        )
    version = (int(match[1]), int(match[2]))
    if not MIN <= version <= MAX:
        raise ApiError(
            406,
            "microversion_unknown",
            f"Version {text} is not supported by the API. "
            f"Minimum is {shown(MIN)} and maximum is {shown(MAX)}.",
        )
    return version


def _of_compute(header: str) -> str | None:
    """The entry for us of a list like "volume 3.69, compute 2.89"."""
    for entry in header.split(","):
        service, _, version = entry.strip().partition(" ")
        if service.lower() == _SERVICE:
            return version.strip()
    return None


def shown(version: Version) -> str:
    return f"{version[0]}.{version[1]}"


def refuse_before(version: Version, since: Version) -> None:
    """What came later does not exist yet.  Raises ApiError 404."""
    if version < since:
        message = f"API version {shown(version)} is not supported on this method."
        raise not_found("not_found", message)


def answer_headers(version: Version) -> dict[str, str]:
    return {
        STANDARD_HEADER: f"{_SERVICE} {shown(version)}",
        LEGACY_HEADER: shown(version),
        "Vary": f"{STANDARD_HEADER}, {LEGACY_HEADER}",
    }
