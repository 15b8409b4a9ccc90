"""What Cinder is given for the fabric, installed beside it; loaded with its pipeline.

A filter, without Keystone: who asks is a service, by a service token.  And LIO's tool is called
within Cinder: as a process for each call it takes some 5 s under emulation, on a busy machine 20.
"""
# mypy: ignore-errors
# (Cinder is not in the project's environment.)

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from typing import Any

from cinder import utils
from cinder.cmd import rtstool
from cinder.volume.targets.lio import LioAdm
from oslo_concurrency import processutils

App = Callable[[dict[str, Any], Any], Any]


@utils.synchronized("lioadm", external=True)  # as Cinder's own is
def _execute(*command: str, **options: Any) -> tuple[str, str]:
    if command[0] != "cinder-rtstool":
        return utils.execute(*command, **options)
    told = io.StringIO()
    try:
        with contextlib.redirect_stdout(told):
            rtstool.main(list(command))
    except (Exception, SystemExit) as error:
        raise processutils.ProcessExecutionError(stderr=f"{told.getvalue()} {error}") from error
    return told.getvalue(), ""


LioAdm._execute = staticmethod(_execute)


def factory(_global: Any, **_local: Any) -> Callable[[App], App]:
    def wrap(app: App) -> App:
        def service(environ: dict[str, Any], start_response: Any) -> Any:
            environ["cinder.context"].service_roles = ["service"]
            return app(environ, start_response)

        return service

    return wrap
