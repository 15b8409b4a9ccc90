"""A target of LIO that is no volume of Cinder's, for a session that somebody logs in by hand.

In the first VM: prints its name, and keeps it while the file exists that is named.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tests.contracts.targets import IscsiTarget


def main(file: str) -> None:
    target = IscsiTarget()
    target.add("volume-by-hand", 1)
    Path(file).write_text(target.iqn)
    while Path(file).exists():
        time.sleep(0.2)
    target.remove()


if __name__ == "__main__":
    main(sys.argv[1])
