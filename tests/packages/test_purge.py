"""`apt purge`: what the packages' postrm leaves, in directories that are the test's alone."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

POSTRM = Path(__file__).parents[2] / "deploy/debian/postrm"
ETC, STATE = "/etc/attachment-ledger", "/var/lib/attachment-ledger"
SERVICE = (
    f"{ETC}/ledger.toml",
    f"{ETC}/credentials/DATABASE_URL",
    f"{ETC}/forward/soc.conf",
    f"{ETC}/checkpoints.pem",
    f"{STATE}-checkpoints/1.json",
    "/var/log/attachment-ledger/soc",
    "/var/lib/systemd/timers/stamp-attachment-ledger-sign.timer",
)
AGENT = (f"{ETC}/agent.toml", f"{ETC}/agent-credentials/LEDGER__TOKEN", f"{STATE}/locks/lock")
BOTH = (f"{ETC}/proxy.pem",)
RECORD, KERNEL = f"{STATE}/locks/connections/record", f"{STATE}/kernels/vmlinuz"
#: $1 is the package, $2 what is asked, the others are files there.  Nothing else is in these three.
ALONE = """
set -e
for each in /etc /var/lib /var/log; do mount -t tmpfs tmpfs $each; done
package=$1 action=$2 script=$3 && shift 3
for each in "$@"; do mkdir -p "$(dirname "$each")" && touch "$each"; done
mkdir -p /var/lib/attachment-ledger/mnt/share
mount -t tmpfs tmpfs /var/lib/attachment-ledger/mnt/share
touch /var/lib/attachment-ledger/mnt/share/volume
DPKG_MAINTSCRIPT_PACKAGE=$package sh "$script" "$action"
find /etc /var/lib /var/log -type f
"""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")


def left(package: str, action: str, *files: str) -> set[str]:
    """Of the files, and of one on a share that is mounted."""
    asked = ["unshare", "--mount", "sh", "-c", ALONE, "-", package, action, str(POSTRM), *files]
    done = subprocess.run(asked, check=True, capture_output=True, text=True)
    found = set(done.stdout.splitlines())
    found.remove(f"{STATE}/mnt/share/volume")
    return found


@pytest.mark.parametrize("package", ["attachment-ledger", "attachment-ledger-agent"])
def test_what_is_removed_keeps_its_settings(package: str) -> None:
    files = (*SERVICE, *AGENT, *BOTH)
    assert left(package, "remove", *files) == set(files)
    assert left(package, "upgrade", *files) == set(files)


def test_what_is_purged_leaves_nothing_of_its_own() -> None:
    assert left("attachment-ledger", "purge", *SERVICE) == set()
    assert left("attachment-ledger-agent", "purge", *AGENT) == set()


def test_the_other_program_keeps_its_own_and_what_somebody_put_there() -> None:
    files = (*SERVICE, *AGENT, *BOTH)
    assert left("attachment-ledger", "purge", *files) == {*AGENT, *BOTH}
    assert left("attachment-ledger-agent", "purge", *files) == {*SERVICE, *BOTH}


@pytest.mark.parametrize("used", [RECORD, f"{STATE}/hv1/locks/connections/record", KERNEL])
def test_what_guests_may_use_stays(used: str) -> None:
    """Records of connections, which nobody could disconnect without them, and kernels."""
    kept = left("attachment-ledger-agent", "purge", *AGENT, used)
    assert kept == {used, f"{STATE}/locks/lock"}
