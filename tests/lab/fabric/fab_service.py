"""What Cinder is given for the fabric, installed beside it; loaded with its pipeline.

A filter, without Keystone: who asks is a service, by a service token.  And what costs less under
emulation: LIO's tool is called within Cinder (as a process for each call it takes some 5 s, on a
busy machine 20), and the consumers of its bus ask seldom.
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
from kombu.transport import memory
from oslo_concurrency import processutils
from oslo_messaging._drivers.impl_rabbit import Connection

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
#: At the 0.02 of cinder_process.py and the 0.05 of oslo.messaging Cinder, idle, takes most of a
#: processor there.
POLL_S = 0.3
memory.Transport.polling_interval = property(lambda _self: POLL_S, lambda _self, _value: None)
Connection._poll_timeout = property(lambda _self: 1.0, lambda _self, _value: None)


def factory(_global: Any, **_local: Any) -> Callable[[App], App]:
    def wrap(app: App) -> App:
        def service(environ: dict[str, Any], start_response: Any) -> Any:
            environ["cinder.context"].service_roles = ["service"]
            return app(environ, start_response)

        return service

    return wrap
