"""The table of contents of the product: one file per flow, listed here."""

from __future__ import annotations

from handlers.engine.plan import Flow
from handlers.flows import repair, repair_correct, repair_host, repair_replace, repair_server
from handlers.flows.attach import ATTACH, ATTACH_OFFLOADED
from handlers.flows.boot import BOOT
from handlers.flows.convert import CONVERT, CONVERT_OFFLOADED, CONVERT_RESIZED
from handlers.flows.delete import DELETE
from handlers.flows.detach import DETACH
from handlers.flows.evacuate import EVACUATE
from handlers.flows.grow import GROW, GROW_FOR_CINDER
from handlers.flows.live_migrate import LIVE_MIGRATE
from handlers.flows.power import PAUSE, REBOOT, REBUILD, START, STOP, UNPAUSE
from handlers.flows.refresh import REFRESH
from handlers.flows.reimage import REIMAGE
from handlers.flows.resize import CONFIRM_RESIZE, RESIZE, REVERT_RESIZE
from handlers.flows.shelve import SHELVE, UNSHELVE
from handlers.flows.snapshot import DELETE_SNAPSHOT, SNAPSHOT
from handlers.flows.swap import MIGRATE_VOLUME, SWAP

FLOWS: dict[str, Flow] = {
    flow.name: flow
    for flow in (
        ATTACH,
        ATTACH_OFFLOADED,
        DETACH,
        BOOT,
        LIVE_MIGRATE,
        RESIZE,
        CONFIRM_RESIZE,
        REVERT_RESIZE,
        EVACUATE,
        SHELVE,
        UNSHELVE,
        SWAP,
        MIGRATE_VOLUME,
        GROW,
        GROW_FOR_CINDER,
        SNAPSHOT,
        DELETE_SNAPSHOT,
        START,
        STOP,
        PAUSE,
        UNPAUSE,
        REBOOT,
        REBUILD,
        REIMAGE,
        DELETE,
        REFRESH,
        CONVERT,
        CONVERT_OFFLOADED,
        CONVERT_RESIZED,
        repair.DROP_RESERVATION,
        repair.DROP_ATTACHMENT,
        repair.FORGET_ATTACHMENT,
        repair.COMPLETE_ATTACHMENT,
        repair_replace.REPLACE_ATTACHMENT,
        repair_replace.REPLACE_RESERVATION,
        repair_correct.CORRECT_ATTACHMENT,
        repair_host.RELEASE_CONNECTION,
        repair_host.PLUG_DISK,
        repair_host.DEFINE_DISK,
        repair_host.DROP_SECRET,
        repair_host.FORGET_GUEST,
        repair_host.SETTLE_VOLUME,
        repair_host.DELETE_VOLUME,
        repair_server.FORGET_SERVER,
    )
}
