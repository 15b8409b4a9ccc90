"""/v2.1, in Nova's form.  Routes: `routes_nova`, `routes_servers`; bodies: `schemas_*`."""
