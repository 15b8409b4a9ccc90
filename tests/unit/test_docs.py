"""What the documents name exists."""

from __future__ import annotations

import re
from pathlib import Path

from handlers.engine.verbs import VERBS
from handlers.flows import FLOWS
from tests.pages import flow_pages

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("tests/lab/*.md")])


REGRESSIONS = (ROOT / "docs/regressions.md").read_text()


def _tests_in(pattern: str) -> set[str]:
    text = "\n".join(path.read_text() for path in ROOT.glob(pattern))
    return set(re.findall(r"def (test_\w+)\(", text))


def test_every_test_that_holds_off_a_bug_exists() -> None:
    named = re.findall(r"`(test_\w+)`", REGRESSIONS)
    assert len(named) > 100
    assert set(named) - _tests_in("tests/**/test_*.py") == set()


def test_every_test_with_a_bugs_number_is_in_the_row_of_that_bug() -> None:
    """And no row is without a test, or a reason."""
    lines = REGRESSIONS.splitlines()
    rows = [line for line in lines if re.match(r"\| (?:LP|hazard|no number)", line)]
    assert [row for row in rows if "`test_" not in row and row.count("|") > 3] == []
    for test in sorted(_tests_in("tests/regressions/test_*.py")):
        for number in re.findall(r"(?:^test_|_)(?:lp|os_brick_|(x))(\d+)(?=_)", test):
            bug = f"X{number[1]}" if number[0] else number[1]
            held = [row for row in rows if f"`{test}`" in row]
            assert any(re.search(rf"\b{bug}\b", row.split("|")[1]) for row in held), test


def _linked(*documents: Path) -> set[Path]:
    return {
        (document.parent / link).resolve()
        for document in documents
        for link in re.findall(r"\]\((?!https?://|#)([^)#]+)", document.read_text())
    }


def test_links_between_documents_lead_somewhere() -> None:
    linked = _linked(*DOCUMENTS)
    assert len(linked) > 100
    assert [each for each in linked if not each.exists()] == []


def test_the_index_has_every_page_or_the_index_of_its_folder() -> None:
    index, folders = ROOT / "docs/README.md", sorted(ROOT.glob("docs/*/README.md"))
    assert {*ROOT.glob("docs/*.md"), *folders} - {index} - _linked(index) == set()
    assert set(ROOT.glob("docs/*/**/*.md")) - _linked(index, *folders) == set()


def _anchors(document: Path) -> set[str]:
    """As GitHub makes them of headings; a repeated one is counted, as `tests-1`."""
    text = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    found: list[str] = []
    for heading in re.findall(r"^#+ (.+?)\s*$", text, re.MULTILINE):
        shown = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        found.append(re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-"))
    return {f"{each}-{found[:n].count(each)}".removesuffix("-0") for n, each in enumerate(found)}


def test_links_to_a_heading_lead_to_one() -> None:
    links = [
        (document, (document.parent / path if path else document), anchor)
        for document in DOCUMENTS
        for path, anchor in re.findall(
            r"\]\((?!https?://)((?:[^)#\s]+\.md)?)#([^)]+)\)", document.read_text()
        )
    ]
    assert len(links) > 50
    assert [each for each in links if each[2] not in _anchors(each[1])] == []


def test_the_pages_of_the_flows_are_what_their_tables_say() -> None:
    written = {path.name: path.read_text() for path in (ROOT / "docs/flows").iterdir()}
    assert written == flow_pages.pages(), "run: make docs"


def test_every_flow_has_a_page_and_a_place_in_the_index() -> None:
    pages = flow_pages.pages()
    assert set(pages) == {
        flow_pages.INDEX,
        flow_pages.VERBS_PAGE,
        *(f"{name}.md" for name in FLOWS),
    }
    assert [name for name in FLOWS if f"[{name}]({name}.md)" not in pages[flow_pages.INDEX]] == []


def test_every_verb_is_a_row_of_the_verbs_page() -> None:
    page = flow_pages.pages()[flow_pages.VERBS_PAGE]
    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == [str(verb) for verb in VERBS]


def test_pages_of_flows_that_are_gone_are_removed(tmp_path: Path) -> None:
    (tmp_path / "teleport.md").write_text("# teleport\n")
    flow_pages.write(tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == flow_pages.pages()


def test_what_the_table_of_the_specs_names_exists() -> None:
    text = (ROOT / "docs/specs.md").read_text()
    named = re.findall(r"`([\w/]+\.py)::(test_\w+)`", text)
    assert len(named) > 100
    tests = {name: (ROOT / "tests" / name).read_text() for name, _ in named}
    assert [f"{name}::{test}" for name, test in named if f"def {test}(" not in tests[name]] == []
    scenarios = (ROOT / "tests/flows/scenarios.py").read_text()
    runs = set(re.findall(r"`\[([\w-]+)\]`", text)) - {"scenario"}
    assert [name for name in runs if f'Scenario("{name}"' not in scenarios] == []
    modules = set(re.findall(r"`([\w/]+\.py)`", text)) - {"flows/test_every_flow.py"}
    assert [name for name in modules if not (ROOT / name).exists()] == []


def test_what_the_architecture_names_exists() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    files = set(re.findall(r"`((?:[a-z_]+/)+[\w.]+\.(?:py|sql))`", text))
    assert len(files) > 25
    assert [name for name in files if not (ROOT / name).exists()] == []


def test_the_architecture_has_a_line_for_each_room() -> None:
    """What is planned does not exist, and is not in the way of what does."""
    text = (ROOT / "docs/architecture.md").read_text()
    first_cells = re.findall(r"^\| (`[^|]+) \|", text, re.MULTILINE)
    planned = [cell for cell in first_cells if "(planned)" in cell]
    assert [cell for cell in planned if (ROOT / cell.split("`")[1]).exists()] == []
    named = " ".join(first_cells)
    rooms = {path.parent for path in [*ROOT.glob("*/__init__.py"), *ROOT.glob("*/*/__init__.py")]}
    short = {str(room.relative_to(ROOT)) for room in rooms} - {"host_agent", "handlers"}
    missing = [room for room in short if f"`{room}/`" not in named]
    assert [room for room in missing if f"`{room.removeprefix('host_agent/')}/`" not in named] == []


def test_every_decision_is_in_the_index_once_and_has_its_number_once() -> None:
    folder = ROOT / "docs/decisions"
    pages = sorted(path.name for path in folder.glob("0*.md"))
    in_force, replaced = (folder / "README.md").read_text().split("\n## Replaced\n")
    listed = re.findall(r"^(?:-|\|) \[(\d{4})\]\((\S+)\)", in_force, re.MULTILINE)
    gone = re.findall(r"^- \[(\d{4})\]\((\S+)\).*: replaced by \[(\d{4})\]", replaced, re.MULTILINE)
    assert sorted([*listed, *(row[:2] for row in gone)]) == [(page[:4], page) for page in pages]
    assert [int(page[:4]) for page in pages] == list(range(1, len(pages) + 1))
    known = {number for number, _ in listed}
    for number, page, by in gone:
        assert by in known, f"{number} is replaced by what is not in force"
        assert f"[{by}]" in (folder / page).read_text(), f"{page} does not name {by}"


def test_code_quotes_decisions_that_exist() -> None:
    """By number; a document outside of the repository is nobody's to read."""
    known = {path.name[:4] for path in (ROOT / "docs/decisions").glob("0*.md")}
    texts = {
        path: path.read_text()
        for pattern in ("*/**/*.py", "sql/**/*.sql", "docs/**/*.md")
        for path in ROOT.glob(pattern)
        if not {".venv", "build"} & set(path.parts)
    }
    quoted = {
        (str(path.relative_to(ROOT)), number)
        for path, text in texts.items()
        for number in re.findall(r"decision[s]? (\d{4})\b", text)
    }
    assert len(quoted) > 5
    assert [where for where in quoted if where[1] not in known] == []
    foreign = [path for path, text in texts.items() if re.search(r"\bDESIGN\b|\(D\d{1,2}\)", text)]
    assert [str(path.relative_to(ROOT)) for path in foreign] == []
