"""Programs of other packages that some tests need, and do without where they are not."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path


def found(name: str) -> str | None:
    """Where it is installed, or beside our Python, where `.ci/run` puts it."""
    return shutil.which(name) or shutil.which(name, path=Path(sys.executable).parent)
