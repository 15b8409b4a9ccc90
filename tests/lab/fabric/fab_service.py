"""A filter of Cinder's pipeline, without Keystone: who asks is a service, by a service token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

App = Callable[[dict[str, Any], Any], Any]


def factory(_global: Any, **_local: Any) -> Callable[[App], App]:
    def wrap(app: App) -> App:
        def service(environ: dict[str, Any], start_response: Any) -> Any:
            environ["cinder.context"].service_roles = ["service"]
            return app(environ, start_response)

        return service

    return wrap
