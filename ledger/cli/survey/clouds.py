"""A cloud that somebody has credentials for, as the `openstack` client is told of it.

`clouds.yaml` (and `secure.yaml` beside it) from the places where that client looks; without
a name of a cloud the environment's OS_* variables.  keystoneauth loads whatever kind of
credential it is.  What we do not read: public profiles of vendors.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from keystoneauth1 import exceptions, loading, session

from ledger.cli.errors import CliError, ExitCode, usage
from ledger.nova_beside.adapters import OVERRIDES, TIMEOUT_S, Options
from ledger.nova_beside.reads import CutListError

#: What else of a cloud there is, beside its `auth`.
_OTHERS = ("auth_type", "region_name", "interface", "cacert")


def options_of(name: str | None, environ: Mapping[str, str]) -> Options:
    """What is known of the cloud.  Raises CliError: there is no such cloud, or nothing is said."""
    name = name or environ.get("OS_CLOUD")
    if name is not None:
        return _of_files(name, environ)
    if "OS_AUTH_URL" not in environ and "OS_AUTH_TYPE" not in environ:
        raise usage("Which cloud?", "Name one of clouds.yaml (--os-cloud), or set OS_AUTH_URL ...")
    known = {
        key.removeprefix("OS_").lower(): value
        for key, value in environ.items()
        if key.startswith("OS_") and value
    }
    others = {key: known[key] for key in (*_OTHERS, *chain(*OVERRIDES.values())) if key in known}
    return {**others, "auth": {key: known[key] for key in known.keys() - others.keys()}}


def _of_files(name: str, environ: Mapping[str, str]) -> Options:
    found: dict[str, Any] = {}
    path = _first("clouds", environ.get("OS_CLIENT_CONFIG_FILE"))
    for each in (path, _first("secure", environ.get("OS_CLIENT_SECURE_FILE"))):
        given = _clouds(each).get(name) or {} if each else {}
        found = {**found, **given, "auth": {**found.get("auth", {}), **given.get("auth", {})}}
    if path is None or (len(found) == 1 and not found["auth"]):
        raise usage(
            f"There is no cloud {name!r} in {path or 'any clouds.yaml'}.",
            "It is looked for here, in ~/.config/openstack and in /etc/openstack.",
        )
    return found


def _first(stem: str, named: str | None) -> Path | None:
    rooms = (Path(), Path.home() / ".config/openstack", Path("/etc/openstack"))
    every = [Path(named)] if named else [room / f"{stem}.yaml" for room in rooms]
    return next((each for each in every if each.is_file()), None)


def _clouds(path: Path) -> dict[str, Any]:
    import yaml  # type: ignore[import-untyped]

    try:
        given = yaml.safe_load(path.read_text()) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise usage(f"{path} cannot be read: {type(error).__name__}.") from None
    clouds = given.get("clouds") if isinstance(given, dict) else None
    return clouds if isinstance(clouds, dict) else {}


def session_of(cloud: Options) -> session.Session:
    """Not logged in yet.  Raises CliError: a credential's parts are not those of its kind."""
    kind = cloud.get("auth_type") or "password"
    try:
        loader: Any = loading.get_plugin_loader(kind)
        names = {option.dest for option in loader.get_options()}
        names |= {each.dest for o in loader.get_options() for each in o.deprecated}
        given = {key: value for key, value in (cloud.get("auth") or {}).items() if key in names}
        auth = loader.load_from_options(**given)
    except (exceptions.ClientException, TypeError) as error:
        raise usage(f"The credentials of kind {kind!r} are not whole: {error}") from None
    verify = cloud.get("cacert") or cloud.get("verify", True)
    return session.Session(auth=auth, verify=verify, timeout=TIMEOUT_S)


def told(error: exceptions.ClientException | CutListError) -> CliError:
    """What could not be read, as the end of a command."""
    if isinstance(error, CutListError):
        return CliError(error.args[0], ExitCode.REFUSED, error.args[1])
    status = getattr(error, "http_status", None)
    refused = status in {401, 403, 406}
    hint = {
        401: "The credentials are wrong, have ended, or may not read this.",
        403: "Surveying takes an administrator of the cloud, with a token for a project.",
        406: "Its API is too old: Nova from 2.89 on (Xena), Cinder from 3.44 on (Queens).",
    }.get(status or 0)
    return CliError(str(error), ExitCode.REFUSED if refused else ExitCode.UNEXPECTED, hint)
