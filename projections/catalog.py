"""All projections of the ledger."""

from __future__ import annotations

from projections.attachments import ATTACHMENTS
from projections.base import Projection
from projections.findings import FINDINGS
from projections.hosts import HOSTS
from projections.instances import INSTANCES
from projections.looks import LOOKS
from projections.mappings import MAPPINGS
from projections.operations import OPERATIONS
from projections.remnants import REMNANTS

ALL: tuple[Projection, ...] = (
    INSTANCES,
    MAPPINGS,
    ATTACHMENTS,
    OPERATIONS,
    HOSTS,
    REMNANTS,
    FINDINGS,
    LOOKS,
)
