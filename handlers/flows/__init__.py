"""The flows of the product: each is a row of one of these files, in the order of the docs."""

from __future__ import annotations

from handlers.engine.plan import Flow
from handlers.flows import (
    attach,
    boot,
    convert,
    delete,
    detach,
    evacuate,
    grow,
    live_migrate,
    power,
    refresh,
    reimage,
    repair,
    repair_correct,
    repair_host,
    repair_replace,
    repair_server,
    resize,
    shelve,
    snapshot,
    swap,
)

FLOWS: dict[str, Flow] = {
    flow.name: flow
    for file in (
        attach,
        detach,
        boot,
        live_migrate,
        resize,
        evacuate,
        shelve,
        swap,
        grow,
        snapshot,
        power,
        reimage,
        delete,
        refresh,
        convert,
        repair,
        repair_replace,
        repair_correct,
        repair_host,
        repair_server,
    )
    for flow in vars(file).values()
    if isinstance(flow, Flow)
}
