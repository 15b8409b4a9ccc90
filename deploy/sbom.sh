#!/bin/bash
# sbom.sh service|agent: what is in a package of ours beside Debian's Python, as CycloneDX JSON, from its lock:
# each distribution with its version and the hashes of its files, of which pip has taken one.
set -euo pipefail
ROOT=$(realpath "$(dirname "$0")/..")
exec "$ROOT/.venv/bin/python" -W ignore::UserWarning -m cyclonedx_py requirements "$ROOT/requirements-$1.lock" \
  --pyproject "$ROOT/pyproject.toml" --mc-type application --output-reproducible --output-format JSON
