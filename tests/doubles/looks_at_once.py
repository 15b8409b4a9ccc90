"""A program of ours to which a look soon after another is a second one.

`python -m tests.doubles.looks_at_once MODULE ...`

Nothing else is otherwise: two looks have to say the same, in the process that looks.
"""

from __future__ import annotations

import runpy
import sys

from handlers.drift import judge

if __name__ == "__main__":
    judge.APART_S = 0.1
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
