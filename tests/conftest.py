"""Shared fixtures: a throw-away PostgreSQL, a migrated database for each test, random seeds.

The server is the embedded one without fsync, one per pytest process (so pytest-xdist
needs no care), unless LEDGER_TEST_DATABASE_URL names a server whose role may create
databases.  A test's database is as new (`tests.databases`).
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from host_agent.shared.platform import logs
from ledger.trial.embedded import EmbeddedPostgres, EmbeddedPostgresError
from tests import guards, tiers
from tests.databases import Databases
from tests.doubles.cut_lines import CutLines, cut_lines

TEST_CLUSTER_PREFIX = "attachment-ledger-test-"
MEMORY = Path("/dev/shm")  # making a database is 300 files: 15 ms here, 70 ms and more on a disk
MEMORY_NEEDED_BYTES = 2 * 1024**3  # containers often have 64 MB
ABANDONED_AFTER_S = 600

logs.through_the_standard_library()  # so that pytest shows and keeps our lines with the others

hypothesis.settings.register_profile("few", max_examples=50, deadline=None, print_blob=True)
hypothesis.settings.register_profile("many", max_examples=500, deadline=None, print_blob=True)
hypothesis.settings.load_profile("few")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Fix hypothesis's seed where it is not given, so that the header can name it."""
    if config.getoption("hypothesis_seed") is None:  # xdist's workers inherit the option
        config.option.hypothesis_seed = str(random.randrange(2**32))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is collected stays: garbage is looked for among what comes after it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)  # before `-m` is looked at
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Whoever names files or words wants all of them."""
    named = config.option.keyword or any(".py" in asked for asked in config.args)
    tiers.mark_costly(items, tiers.TURN, all_asked_for=bool(named))


def pytest_report_header(config: pytest.Config) -> list[str]:
    seed = config.getoption("hypothesis_seed")
    profile = config.getoption("hypothesis_profile") or "few"
    return [
        f"hypothesis profile {profile}; repeat with --hypothesis-seed={seed}",
        f"costly tests in turn; repeat with TEST_TURN={tiers.TURN}",
    ]


@pytest.fixture(scope="session", autouse=True)
def _guarded() -> Iterator[None]:
    with guards.everywhere():
        yield


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A server to make databases on: its maintenance database's DSN."""
    given = os.environ.get("LEDGER_TEST_DATABASE_URL")
    if given:
        yield given
        return
    _sweep_abandoned()
    home = Path(tempfile.mkdtemp(prefix=TEST_CLUSTER_PREFIX, dir=roomy()))
    home.chmod(0o711)  # as root the server runs as another account
    try:
        with EmbeddedPostgres(fsync=False) as server:
            yield server.start(home)
    finally:
        shutil.rmtree(home)


@pytest.fixture(scope="session")
def databases(postgres_url: str) -> Iterator[Databases]:
    made = Databases(postgres_url)
    yield made
    made.close()


@pytest.fixture
def database_url(databases: Databases) -> Iterator[str]:
    """A database of this test's own, with the current schema and nothing of another test."""
    lent = databases.lend()
    yield lent.url
    databases.give_back(lent)


@pytest.fixture
def lines(database_url: str) -> Iterator[CutLines]:
    """A way to that database whose lines a test can cut."""
    with (
        tempfile.TemporaryDirectory(prefix="cut-") as home,  # the path of a socket is short
        cut_lines(database_url, Path(home)) as lines,
    ):
        yield lines


@pytest.fixture
def empty_database_url(databases: Databases) -> Iterator[str]:
    """A database of this test's own, with nothing in it."""
    name = databases.create()
    yield databases.url(name)
    databases.drop(name)


def roomy() -> Path:
    if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > MEMORY_NEEDED_BYTES:
        return MEMORY
    return Path(tempfile.gettempdir())


def _sweep_abandoned() -> None:
    """Stop and remove the servers of test runs that were killed."""
    for home in roomy().glob(f"{TEST_CLUSTER_PREFIX}*"):
        # Another run may be ending, or sweeping as well.
        with contextlib.suppress(OSError, EmbeddedPostgresError):
            if home.stat().st_uid == os.geteuid() and _is_abandoned(home / "users.lock"):
                with EmbeddedPostgres(fsync=False) as server:
                    server.start(home)
                shutil.rmtree(home)


def _is_abandoned(users: Path) -> bool:
    if time.time() - users.stat().st_mtime < ABANDONED_AFTER_S:
        return False  # perhaps between its start and its lock
    with users.open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
