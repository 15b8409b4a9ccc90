"""What of a server is changed without an operation, as data."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from handlers.requests.edits import TAGS_MAX
from ledger.http.schemas import Asked
from ledger.nova.servers.schemas_create import MetadataKey, MetadataValue, ServerTag

#: Of a request; how many a server may have is a rule of its own, and 403.
ITEMS_MAX = 1_000

Items = Annotated[dict[MetadataKey, MetadataValue], Field(max_length=ITEMS_MAX)]


class MetadataBody(Asked):
    """POST and PUT servers/{id}/metadata."""

    metadata: Items


class MetadataItemBody(Asked):
    """PUT servers/{id}/metadata/{key}: the item of that key."""

    meta: Annotated[Items, Field(min_length=1, max_length=1)]


class TagsBody(Asked):
    """PUT servers/{id}/tags."""

    tags: Annotated[list[ServerTag], Field(max_length=TAGS_MAX)]
