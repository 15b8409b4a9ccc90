"""A target of LIO and one of nvmet that are no volumes of Cinder's, for whoever logs in by hand.

In the first VM: writes their names to the file that is named, and keeps them while that is there.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tests.contracts.targets import IscsiTarget, NvmeTarget


def main(file: Path) -> None:
    targets = IscsiTarget(), NvmeTarget(port=4421)
    for target in targets:
        target.add(f"by-hand-{target.kind}", 1)
    new = file.with_suffix(".new")
    new.write_text(f"{targets[0].iqn} {targets[1].nqn}\n")
    new.rename(file)
    while file.exists():  # whoever has begun this removes it, over a shell: no signal crosses that
        time.sleep(0.2)
    for target in targets:
        target.remove()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
