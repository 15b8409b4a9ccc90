"""The table of contents of the product: one file per flow, listed here."""

from __future__ import annotations

from handlers.flows.attach import ATTACH
from handlers.flows.detach import DETACH
from handlers.plan import Flow

FLOWS: dict[str, Flow] = {flow.name: flow for flow in (ATTACH, DETACH)}
