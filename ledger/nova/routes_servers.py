"""The routes of /v2.1 about what a server has beside its volumes, and what it is called."""

from __future__ import annotations

from typing import Any

from ledger.http.route import Route, read
from ledger.nova import schemas_hosts, schemas_nova
from ledger.nova.servers import edits as server_edits
from ledger.nova.servers import parts as server_parts
from ledger.nova.servers import schemas_create, schemas_edits

_SERVER = "/v2.1/servers/{server_id}"
_METADATA, _TAGS = f"{_SERVER}/metadata", f"{_SERVER}/tags"
_METADATA_RULE, _TAGS_RULE = "os_compute_api:server-metadata", "os_compute_api:os-server-tags"


def _change(
    name: str, where: str, handler: Any, rule: str, answers: dict[int, Any], body: Any = None
) -> Route:
    """A route that changes something without an operation; `where`: its method and path."""
    method, path = where.split(" ")
    return Route(
        name=name,
        method=method,
        path=path,
        handler=handler,
        body=body,
        answers=answers,
        rules=(rule,),
    )


PARTS = (
    _change(
        "server_update",
        f"PUT {_SERVER}",
        server_edits.server_update,
        "os_compute_api:servers:update",
        {200: schemas_nova.ServerAnswer},
        schemas_create.ServerUpdateBody,
    ),
    read(
        "metadata",
        _METADATA,
        server_parts.metadata,
        schemas_hosts.Metadata,
        rules=(f"{_METADATA_RULE}:index",),
    ),
    _change(
        "metadata_add",
        f"POST {_METADATA}",
        server_edits.metadata_add,
        f"{_METADATA_RULE}:create",
        {200: schemas_hosts.Metadata},
        schemas_edits.MetadataBody,
    ),
    _change(
        "metadata_replace",
        f"PUT {_METADATA}",
        server_edits.metadata_replace,
        f"{_METADATA_RULE}:update_all",
        {200: schemas_hosts.Metadata},
        schemas_edits.MetadataBody,
    ),
    read(
        "metadata_item",
        f"{_METADATA}/{{key}}",
        server_parts.metadata_item,
        schemas_hosts.MetadataItem,
        rules=(f"{_METADATA_RULE}:show",),
    ),
    _change(
        "metadata_item_set",
        f"PUT {_METADATA}/{{key}}",
        server_edits.metadata_item_set,
        f"{_METADATA_RULE}:update",
        {200: schemas_hosts.MetadataItem},
        schemas_edits.MetadataItemBody,
    ),
    _change(
        "metadata_item_delete",
        f"DELETE {_METADATA}/{{key}}",
        server_edits.metadata_item_delete,
        f"{_METADATA_RULE}:delete",
        {204: None},
    ),
    read(
        "addresses",
        f"{_SERVER}/ips",
        server_parts.addresses,
        schemas_hosts.Addresses,
        rules=("os_compute_api:ips:index",),
    ),
    read("tags", _TAGS, server_parts.tags, schemas_hosts.Tags, rules=(f"{_TAGS_RULE}:index",)),
    _change(
        "tags_replace",
        f"PUT {_TAGS}",
        server_edits.tags_replace,
        f"{_TAGS_RULE}:update_all",
        {200: schemas_hosts.Tags},
        schemas_edits.TagsBody,
    ),
    _change(
        "tags_delete",
        f"DELETE {_TAGS}",
        server_edits.tags_delete,
        f"{_TAGS_RULE}:delete_all",
        {204: None},
    ),
    Route(
        name="tag",
        method="GET",
        path=f"{_TAGS}/{{tag}}",
        handler=server_parts.tag,
        parameters=(),
        answers={204: None},
        rules=(f"{_TAGS_RULE}:show",),
    ),
    _change(
        "tag_add",
        f"PUT {_TAGS}/{{tag}}",
        server_edits.tag_add,
        f"{_TAGS_RULE}:update",
        {201: None, 204: None},
    ),
    _change(
        "tag_delete",
        f"DELETE {_TAGS}/{{tag}}",
        server_edits.tag_delete,
        f"{_TAGS_RULE}:delete",
        {204: None},
    ),
)
