"""An unmodified Cinder in one process: volume services, scheduler and API.

The real entry points fork one process each, which needs a message broker
between them; here the bus is in memory.  Run with the interpreter of Cinder's
virtualenv:  cinder_process.py --config-file cinder.conf
"""
# mypy: ignore-errors
# (Cinder is not in the project's environment.)

from cinder import monkey_patch

monkey_patch.patch()  # before anything else is imported: eventlet

import shlex  # noqa: E402
import sys  # noqa: E402

import os_brick  # noqa: E402
from cinder import coordination, objects, rpc, service, utils, version  # noqa: E402
from cinder.common import config, constants  # noqa: E402
from kombu.transport import memory  # noqa: E402
from oslo_config import cfg  # noqa: E402
from oslo_log import log  # noqa: E402
from oslo_privsep import priv_context  # noqa: E402
from oslo_service import service as oslo_service  # noqa: E402

CONF = cfg.CONF

#: oslo.messaging has the consumers of a bus in memory ask without a pause (0 s): idle, that
#: takes half a core.
POLL_S = 0.02
memory.Transport.polling_interval = property(lambda _self: POLL_S, lambda _self, _value: None)


def volume_service(backend: str) -> service.Service:
    CONF.register_opt(cfg.StrOpt("backend_host"), group=backend)
    return service.Service.create(
        host=f"{CONF.host}@{backend}",
        service_name=backend,
        coordination=True,
        binary=constants.VOLUME_BINARY,
    )


def main() -> None:
    objects.register_all()
    CONF(sys.argv[1:], project="cinder", version=version.version_string())
    config.set_middleware_defaults()
    log.setup(CONF, "cinder")
    priv_context.init(root_helper=shlex.split(utils.get_root_helper()))
    os_brick.setup(CONF)
    coordination.COORDINATOR.start()
    rpc.init(CONF)
    launcher = oslo_service.ServiceLauncher(CONF, restart_method="mutate")
    for backend in CONF.enabled_backends:
        launcher.launch_service(volume_service(backend))
    launcher.launch_service(service.Service.create(binary=constants.SCHEDULER_BINARY))
    launcher.launch_service(service.WSGIService("osapi_volume"))
    launcher.wait()


if __name__ == "__main__":
    main()
