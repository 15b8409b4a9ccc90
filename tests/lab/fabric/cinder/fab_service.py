"""What Cinder is given for the fabric, installed beside it; loaded with its pipeline.

A filter, without Keystone: who asks is a service, by a service token.  And hands in the virtual
machine that is its storage (hands.py), for Cinder is outside, where it is not emulated: what it
executes is executed there, and what its target drivers look for is looked for there.
"""
# mypy: ignore-errors
# (Cinder is not in the project's environment.)

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import nvmet
from cinder import privsep
from cinder.privsep.targets import nvmet as nvmet_privsep
from oslo_concurrency import processutils

App = Callable[[dict[str, Any], Any], Any]
GROUP = "/dev/fab/"


def _execute(*command: Any, **options: Any) -> tuple[str, str]:
    words = [str(each) for each in command]
    name = "run"
    if words[0] == "cinder-rtstool":
        name, words = "rtstool", words[1:]
    status, told, error = nvmet.ask(name, *words)
    if status not in options.get("check_exit_code", [0]):
        raise processutils.ProcessExecutionError(told, error, status, " ".join(map(str, command)))
    return told, error


_exists = os.path.exists
processutils.execute = _execute
os.path.exists = lambda path: (
    nvmet.ask("exists", path) if str(path).startswith(GROUP) else _exists(path)
)
nvmet_privsep.os = nvmet.Files
privsep.sys_admin_pctxt.set_client_mode(False)


def factory(_global: Any, **_local: Any) -> Callable[[App], App]:
    def wrap(app: App) -> App:
        def service(environ: dict[str, Any], start_response: Any) -> Any:
            environ["cinder.context"].service_roles = ["service"]
            return app(environ, start_response)

        return service

    return wrap
