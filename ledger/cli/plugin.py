"""Our commands behind the unmodified `openstack`: `openstack attachment ledger drift list`.

The names in capitals and the two functions are what python-openstackclient asks a plugin for
(openstackclient.common.clientmanager); it finds this module, and the commands, by entry points
of pyproject.toml.  URL and token are those of its session, whatever that has logged in with.
"""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ledger.cli.client import Client

API_NAME = "attachment_ledger"
API_VERSION_OPTION = "os_attachment_ledger_api_version"
DEFAULT_API_VERSION = "1"
API_VERSIONS = ("1",)

#: What stands before our commands there.
NOUN = "attachment ledger"
SERVICE_TYPE = "attachment-ledger"
_OPTION = "--os-attachment-ledger-endpoint"
_VARIABLE = "OS_ATTACHMENT_LEDGER_ENDPOINT"

#: By what an answer lacks; ledger.cli.base has those of our own program.
HINTS = {
    "token": "See whose token it is: openstack token issue. Does the ledger ask this Keystone?",
    "url": f"See where it should be: openstack catalog show {SERVICE_TYPE}; "
    f"or say where it is: {_OPTION} URL",
}


def build_option_parser(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """openstacksdk has the name below for it, so that clouds.yaml may say it, too."""
    parser.add_argument(
        _OPTION,
        dest="attachment_ledger_endpoint_override",
        metavar="<url>",
        default=os.environ.get(_VARIABLE),
        help="where the attachment ledger is, in place of what the catalog says "
        f"(Env: {_VARIABLE})",
    )
    return parser


def make_client(manager: Any) -> Client:
    """For a client manager of osc-lib.  Raises ClientError if the catalog has no ledger."""
    from keystoneauth1.exceptions import CatalogException

    from ledger.cli.client import Client, ClientError

    try:
        url = manager.get_endpoint_for_service_type(
            SERVICE_TYPE, manager.region_name, manager.interface
        )
    except CatalogException:
        url = None
    if url is None:
        raise ClientError(
            f"The catalog has no {manager.interface} endpoint of type {SERVICE_TYPE}.",
            f"Have one made (docs/keystone.md), or say where the ledger is: {_OPTION} URL",
        )
    return Client.of(manager.session, url)
