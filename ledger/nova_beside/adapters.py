"""Where Nova and Cinder of a cloud are, for who has a session there."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from keystoneauth1 import adapter, session

#: How long one answer may take; a page of volumes takes some seconds.
TIMEOUT_S = 120.0
#: How often a request is sent again whose connection failed, or that was answered with 503.
RETRIES = 2
#: Nova and Cinder, by their types in the catalog; what says where each is, without a catalog.
OVERRIDES = {
    "compute": ("compute_endpoint_override",),
    "block-storage": ("block_storage_endpoint_override", "volume_endpoint_override"),
}

#: At DEBUG keystoneauth would log bodies, and a single attachment's has secrets.
_HTTP_LOG = logging.getLogger(__name__ + ".http")
_HTTP_LOG.setLevel(logging.INFO)

#: Of a cloud, as clouds.yaml has them.
Options = Mapping[str, Any]


def adapter_of(cloud: Options, to: session.Session, service: str) -> adapter.Adapter:
    """To one of those that `OVERRIDES` names."""
    return adapter.Adapter(
        to,
        service_type=service,
        interface=cloud.get("interface") or "public",
        region_name=cloud.get("region_name"),
        endpoint_override=next(
            (cloud[each] for each in OVERRIDES[service] if cloud.get(each)), None
        ),
        connect_retries=RETRIES,
        status_code_retries=RETRIES,
        user_agent="attachment-ledger",
        logger=_HTTP_LOG,
    )
