"""docs/operations.md as it is typed: its blocks, in their order."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

from tests.operations.machines import NET, Machine

DOCS = Path(__file__).parents[2] / "docs"
#: With our network.
PAGE = (DOCS / "operations.md").read_text().replace("192.0.2", NET)
_USERS = {"#": "root", "$": "ops"}


@dataclass(frozen=True)
class Block:
    section: str
    kind: str  # console, or the form of a file that is shown
    text: str


def blocks(page: str) -> list[Block]:
    sections = [each.partition("\n") for each in re.split(r"^## ", page, flags=re.MULTILINE)[1:]]
    return [
        Block(title, kind, dedent(text))
        for title, _, whole in sections
        for kind, text in re.findall(r"^ *```(\w+)\n(.*?)```", whole, re.DOTALL | re.MULTILINE)
    ]


def lines(block: Block) -> list[tuple[str, str]]:
    """Who types what."""
    return [(_USERS[each[0]], each[2:]) for each in block.text.splitlines()]


class Typist:
    """Types the page in its order; what a shell was told to export it knows until the end."""

    def __init__(self, passwords: dict[str, str]) -> None:
        self._passwords = passwords
        self._left = blocks(PAGE)
        self._told: dict[tuple[str, str], str] = {}

    def shown(self, section: str) -> str:
        """The next file, with the passwords."""
        return self._with_passwords(self._next(section).text)

    def type(self, section: str, *machines: Machine) -> str:
        """The next commands, on each of the machines; what they print."""
        return self.type_block(self._next(section, "console"), *machines)

    def type_block(self, block: Block, *machines: Machine) -> str:
        return "".join(
            self._type(machine, user, self._with_passwords(line))
            for machine in machines
            for user, line in lines(block)
        )

    @property
    def is_done(self) -> bool:
        return not self._left

    def _next(self, section: str, kind: str = "") -> Block:
        block = self._left.pop(0)
        assert (block.section, block.kind == "console") == (section, kind == "console")
        return block

    def _type(self, machine: Machine, user: str, line: str) -> str:
        sys.stdout.write(f"{machine.name} {'#' if user == 'root' else '$'} {line}\n")
        sys.stdout.flush()
        told = self._told.setdefault((machine.name, user), "")
        if re.match(r"(export|unset) ", line):
            self._told[machine.name, user] += f"{line}\n"
        asked = re.search(r"--pwprompt (\S+)", line)
        answers = f"{self._passwords[asked[1]]}\n" * 2 if asked else ""
        return machine.type(line, user, answers, earlier=told)

    def _with_passwords(self, text: str) -> str:
        for user, password in self._passwords.items():
            text = text.replace(f"{user}:PASSWORD@", f"{user}:{password}@")
        return text
