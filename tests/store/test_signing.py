"""`event sign|prove`: whoever has a checkpoint finds every change, with one file of Python."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from eventsourcing.persistence import StoredEvent
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ledger.cli import shell
from ledger.log.chain import StoredRow, encode
from ledger.log.recorder import LedgerRecorder
from ledger.upkeep import check_proof, tiles
from ledger.upkeep.archive import Archive
from ledger.upkeep.check_proof import (
    ProofError,
    PublicKey,
    TreeCheckpoint,
    is_signed,
    leaf_hash,
    node_hash,
)
from ledger.upkeep.retention import detach
from ledger.upkeep.tiles import Roots, Tiles
from tests.store.months import Past, day, rechain

Db = psycopg.Connection[Any]
EVENTS = 12
PAGE = (Path(__file__).parents[2] / "docs/audit.md").read_text()
Out = pytest.CaptureFixture[str]


# --- signatures ----------------------------------------------------------------------------------

#: RFC 8032, 7.1: key, message, signature.
VECTORS = [
    (
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        (
            "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155"
            "5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b"
        ),
    ),
    (
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        (
            "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac"
            "18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a"
        ),
    ),
]


@pytest.mark.parametrize("vector", VECTORS)
def test_signatures_are_those_of_the_standard(vector: tuple[str, str, str]) -> None:
    key, message, signature = map(bytes.fromhex, vector)
    assert is_signed(key, message, signature)
    assert not is_signed(key, message + b"x", signature)
    assert not is_signed(key, message, signature[:63] + bytes([signature[63] ^ 1]))
    assert not is_signed(key, message, signature[:32] + b"\xff" * 32), "the number is too large"
    assert not is_signed(b"\xff" * 32, message, signature), "no point"


def test_a_library_signs_what_we_believe() -> None:
    for number in range(8):
        private = Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32)
        message = bytes(range(number * 7))
        signature = private.sign(message)
        public = private.public_key().public_bytes_raw()
        assert is_signed(public, message, signature)
        assert not is_signed(public, message, signature[::-1])


def test_the_note_of_the_specification_is_read() -> None:
    """c2sp.org/signed-note, "Example"; it is no checkpoint, which is found only after that."""
    key = PublicKey.parse("example.com/foo+530d903a+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k")
    note = (
        "This is an example message.\n\n\u2014 example.com/foo Uw2QOkn8srV1yJGh2VYRlL1Tnagv1YEq6T"
        "fXppzi2ONncAlTgK7Ztg1ERYNZXsYjOBH3mFXmRKuwHjG1Yu72IneyaQM=\n"
    )
    with pytest.raises(ProofError, match="no number"):
        TreeCheckpoint.parse(note, key)
    with pytest.raises(ProofError, match="not signed"):
        TreeCheckpoint.parse(note.replace("example m", "other m"), key)
    with pytest.raises(ProofError, match="no number"):
        TreeCheckpoint.unsigned(f"example.com/foo\n{'9' * 5000}\n")


# --- the tree ------------------------------------------------------------------------------------

#: Leaves and root of the tree that implementations of RFC 6962 are tried with.
LEAVES = ["", "00", "10", "2021", "3031", "40414243", "5051525354555657", "60616263646566676869"]
LEAVES[-1] += "6a6b6c6d6e6f"
ROOT_OF_8 = "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328"


def plain_root(leaves: list[bytes]) -> bytes:
    """RFC 9162, 2.1.1, word by word."""
    if len(leaves) == 1:
        return leaves[0]
    split = 1
    while split * 2 < len(leaves):
        split *= 2
    return node_hash(plain_root(leaves[:split]), plain_root(leaves[split:]))


def test_the_tree_is_that_of_certificate_transparency(tmp_path: Path) -> None:
    leaves = [leaf_hash(bytes.fromhex(text)) for text in LEAVES]
    tree, roots = Tiles(tmp_path, 0), Roots()
    tree.grow(leaves)
    for leaf in leaves:
        roots.add(leaf)
    assert tree.root().hex() == roots.root().hex() == plain_root(leaves).hex() == ROOT_OF_8


def test_every_path_of_every_size_leads_to_the_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With tiles of four hashes: three levels of them."""
    monkeypatch.setattr(tiles, "WIDTH", 4)
    monkeypatch.setattr(tiles, "_TILE_BYTES", 128)
    monkeypatch.setattr(tiles, "_BITS", 2)
    leaves = [hashlib.sha256(bytes([number])).digest() for number in range(70)]
    roots, plain = Roots(), {}
    for size in range(1, 71):
        Tiles(tmp_path, size - 1).grow([leaves[size - 1]])
        roots.add(leaves[size - 1])
        plain[size] = plain_root(leaves[:size])
        assert roots.root() == plain[size]
        tree = Tiles(tmp_path, size)
        assert tree.root() == plain[size]
        for index in range(size):
            path = tree.inclusion(index)
            root = check_proof.root_by_inclusion(leaves[index], index, size, path)
            assert root == plain[size]
        for old in range(1, size + 1):
            before, now = (
                TreeCheckpoint("x", old, plain[old]),
                TreeCheckpoint("x", size, plain[size]),
            )
            path = tree.consistency(old)
            check_proof.check_consistency(before, now, path)
            for wrong in ([*path, leaves[0]], path[:-1]):
                if wrong != path:
                    with pytest.raises(ProofError):
                        check_proof.check_consistency(before, now, wrong)
            with pytest.raises(ProofError):
                check_proof.check_consistency(before._replace(root=bytes(32)), now, path)
    earlier = Tiles(tmp_path, 37)
    assert earlier.root() == plain[37], "of what has grown since"
    again = Tiles(tmp_path, 37)
    again.grow(leaves[37:50])
    assert again.root() == plain[50], "after a crash it is added again"


def test_what_was_added_without_a_checkpoint_and_then_lost_is_not_in_the_tree(
    tmp_path: Path,
) -> None:
    """A run that was stopped before it signed; then a failover lost what it had read."""
    kept, lost, other = (
        [leaf_hash(b"%s %d" % (name, number)) for number in range(count)]
        for name, count in ((b"kept", 100), (b"lost", 70_000), (b"other", 120))
    )
    Tiles(tmp_path, 0).grow(kept)
    Tiles(tmp_path, 100).grow(lost)
    tree = Tiles(tmp_path, 100)
    assert tree.root() == plain_root(kept)
    tree.grow(other[:50])
    assert tree.root() == plain_root([*kept, *other[:50]])
    again = Tiles(tmp_path, 150)
    again.grow(other[50:])
    assert again.root() == plain_root([*kept, *other])
    Tiles(tmp_path, 220).grow(lost)
    assert Tiles(tmp_path, 70_220).root() == plain_root([*kept, *other, *lost])


def test_tiles_are_where_the_specification_has_them(tmp_path: Path) -> None:
    """c2sp.org/tlog-tiles: "a tree of size 70,000 ..."."""
    tree = Tiles(tmp_path, 0)
    tree.grow([hashlib.sha256(b"%d" % number).digest() for number in range(70_000)])
    found = {str(path.relative_to(tmp_path / "tile")) for path in tmp_path.rglob("*")}
    assert {"0/000", "0/272", "0/273.p/112", "1/000", "1/001.p/17", "2/000.p/1"} <= found
    assert not any(name.startswith(("0/273.p/1/", "3/", "0/274")) for name in found)
    assert tree._path_of(0, 1234067) == tmp_path / "tile/0/x001/x234/067"


# --- the commands --------------------------------------------------------------------------------


@pytest.fixture
def log(recorder: LedgerRecorder) -> LedgerRecorder:
    append(recorder, EVENTS)
    return recorder


def append(recorder: LedgerRecorder, count: int) -> None:
    for number in range(count):
        recorder.insert_events([StoredEvent(uuid4(), 1, "T.Happened", b'{"n":%d}' % number)])


class Auditor:
    """The commands, and what somebody checks with the one file and nothing else."""

    def __init__(self, database_url: str, home: Path, out: Out) -> None:
        self._database, self._out = f"--database-url={database_url}", out
        self.home, self.directory = home, home / "signed"
        self.directory.mkdir()
        self.private = home / "key.pem"
        self.new_key()
        self.key = ""

    def new_key(self) -> None:
        command = ["openssl", "genpkey", "-algorithm", "ed25519", "-out", str(self.private)]
        subprocess.run(command, check=True)

    def run(self, *words: str | Path) -> tuple[int, str, str]:
        code = shell.main(["event", *map(str, words), self._database])
        told = self._out.readouterr()
        return code, told.out, told.err

    def sign(self, *more: str | Path) -> Path:
        code, out, err = self.run("sign", "--key", self.private, "--to", self.directory, *more)
        assert code == 0, err
        self.key = err.split()[-1]
        return self.kept(f"{out.splitlines()[1]}.checkpoint", out)

    def refused(self, *more: str | Path) -> str:
        code, out, err = self.run("sign", "--key", self.private, "--to", self.directory, *more)
        assert (code, out) == (4, "")
        return err

    def prove(self, *words: str | Path) -> Path:
        code, out, err = self.run("prove", *words, "--from", self.directory)
        assert code == 0, err
        return self.kept("proof", out)

    def kept(self, name: str, text: str) -> Path:
        path = self.home / name
        path.write_text(text)
        return path

    def check(self, proof: Path, *more: str | Path) -> subprocess.CompletedProcess[str]:
        alone = self.home / "alone"
        alone.mkdir(exist_ok=True)
        shutil.copy(check_proof.__file__, alone)
        command = [sys.executable, "-I", "-S", str(alone / "check_proof.py"), "--key", self.key]
        words = [*command, *map(str, more), str(proof)]
        return subprocess.run(words, capture_output=True, text=True, check=False)


@pytest.fixture
def auditor(database_url: str, tmp_path: Path, capsys: Out) -> Auditor:
    return Auditor(database_url, tmp_path, capsys)


def test_an_event_is_proven_by_one_file_and_no_other_is_shown(
    log: LedgerRecorder, auditor: Auditor, db: Db
) -> None:
    first = auditor.sign()
    append(log, 3)
    auditor.sign()
    topic, body = "Host.Fenced", b'{"reason":"\xc3\xa4"}'
    log.insert_events([StoredEvent(uuid4(), 1, topic, body)])
    auditor.sign()
    last = EVENTS + 4
    done = auditor.check(auditor.prove(str(last)))
    assert (done.returncode, done.stderr) == (0, "")
    event = json.loads(done.stdout)
    columns = ", ".join(check_proof.COLUMNS)
    [row] = db.execute(f"SELECT {columns} FROM events WHERE position = {last}".encode()).fetchall()
    shown = dict(zip(check_proof.COLUMNS, row, strict=True))
    shown |= {"body": {"reason": "ä"}, "recorded_at": shown["recorded_at"].isoformat()}
    assert event == {name: str(v) if "_id" in name and v else v for name, v in shown.items()}
    earlier = auditor.check(auditor.prove("2", "--checkpoint", first))
    assert json.loads(earlier.stdout)["position"] == 2
    assert (
        auditor.run("prove", str(last), "--from", auditor.directory, "--checkpoint", first)[0] == 3
    )


def test_a_log_with_roles_and_all_columns_is_read_by_the_one_file(
    past: Past, auditor: Auditor, db: Db
) -> None:
    auditor.sign()
    [[position]] = db.execute(
        "SELECT max(position) FROM events WHERE roles IS NOT NULL AND operation_id IS NOT NULL"
    ).fetchall()
    event = json.loads(auditor.check(auditor.prove(str(position))).stdout)
    [[roles]] = db.execute("SELECT roles FROM events WHERE position = %s", (position,)).fetchall()
    assert event["roles"] == roles


def test_that_a_log_has_only_grown_is_proven(log: LedgerRecorder, auditor: Auditor) -> None:
    old = auditor.sign()
    append(log, 300)
    new = auditor.sign()
    done = auditor.check(auditor.prove("--since", old), "--before", old)
    assert done.stdout == f"The log of {EVENTS + 300} events begins with the log of {EVENTS}.\n"
    forged = old.read_text().replace(f"\n{EVENTS}\n", f"\n{EVENTS + 1}\n")
    assert auditor.check(auditor.prove("--since", old), "--before", new).returncode == 1
    done = auditor.check(auditor.prove("--since", old), "--before", auditor.kept("forged", forged))
    assert done.stderr == "not proven: the checkpoint is not signed with this key\n"


def test_nothing_new_is_not_signed_again(log: LedgerRecorder, auditor: Auditor) -> None:
    before = auditor.sign().read_text()
    files = sorted(auditor.directory.rglob("*"))
    assert auditor.sign().read_text() == before
    assert sorted(auditor.directory.rglob("*")) == files


TAMPERING = {
    "changed": "UPDATE events SET body = '{}' WHERE position = 5",
    "moved": "UPDATE events SET position = CASE position WHEN 5 THEN 7 WHEN 7 THEN 5 END + 100"
    " WHERE position IN (5, 7); UPDATE events SET position = position - 100 WHERE position > 100",
    "removed": "DELETE FROM events WHERE position = 5; UPDATE events SET position = -position"
    " WHERE position > 5; UPDATE events SET position = -position - 1 WHERE position < 0;"
    " UPDATE log_head SET position = position - 1",
    "added": "UPDATE events SET position = -position WHERE position > 5;"
    " UPDATE events SET position = -position + 1 WHERE position < 0;"
    " UPDATE log_head SET position = position + 1;"
    " INSERT INTO events (position, originator_id, originator_version, topic, body, recorded_at,"
    " append_id) VALUES (6, gen_random_uuid(), 1, 'T.Forged', '{}', now(), gen_random_uuid())",
}


@pytest.mark.parametrize("how", TAMPERING)
def test_a_change_is_found_although_the_chain_was_made_anew(
    log: LedgerRecorder, auditor: Auditor, db: Db, how: str
) -> None:
    kept = auditor.sign()
    assert auditor.run("verify", "--checkpoint", kept)[0] == 0
    db.execute(TAMPERING[how].encode())
    rechain(db)
    assert auditor.run("verify")[0] == 0, "by itself it is whole"
    code, _, err = auditor.run("verify", "--checkpoint", kept)
    assert code == 4
    assert "not the signed events" in err or "ends before the signed checkpoint" in err
    position = "6" if how == "added" else "5"
    assert auditor.run("prove", position, "--from", auditor.directory)[0] == 4


def test_whose_checkpoint_it_is_is_checked_if_the_key_is_known(
    log: LedgerRecorder, auditor: Auditor
) -> None:
    """Who can write to the log and to the file can make both agree, but for the signature."""
    kept = auditor.sign()
    key = auditor.kept("public-key", auditor.key)
    for named in (auditor.key, key):
        code, _, err = auditor.run("verify", "--checkpoint", kept, "--key", named)
        assert (code, "No key is given" in err) == (0, False), err
    code, _, err = auditor.run("verify", "--checkpoint", kept)
    assert (code, "No key is given, so signatures are not checked" in err) == (0, True)

    good = auditor.key
    auditor.directory.rename(auditor.home / "theirs")
    auditor.directory.mkdir()
    auditor.new_key()
    forged = auditor.sign()
    assert auditor.run("verify", "--checkpoint", forged)[0] == 0, "the log is the same"
    code, out, err = auditor.run("verify", "--checkpoint", forged, "--key", good)
    assert (code, out) == (4, "")
    assert f"{forged}: the checkpoint is not signed with this key" in err
    bare = auditor.kept("bare", forged.read_text().partition("\n\n")[0] + "\n\n")
    assert auditor.run("verify", "--checkpoint", bare, "--key", good)[0] == 4


@pytest.mark.parametrize("key", ["nonsense+1+AA==", "/no/such/file"])
def test_a_key_that_is_none_is_a_usage_error(
    log: LedgerRecorder, auditor: Auditor, key: str
) -> None:
    kept = auditor.sign()
    assert auditor.run("verify", "--checkpoint", kept, "--key", key)[0] == 2
    code, _, err = auditor.run("verify", "--key", auditor.key)
    assert (code, "none is given" in err) == (2, True)


def test_a_changed_end_is_not_gone_on_with(log: LedgerRecorder, auditor: Auditor, db: Db) -> None:
    auditor.sign()
    db.execute("UPDATE events SET body = '[]' WHERE position = %s", (EVENTS,))
    rechain(db)
    append(log, 1)
    assert (
        f"position {EVENTS}: not the event that was there when it was signed" in auditor.refused()
    )


def test_what_is_new_is_signed_only_if_its_chain_holds(
    log: LedgerRecorder, auditor: Auditor, db: Db
) -> None:
    auditor.sign()
    append(log, 3)
    db.execute("UPDATE events SET body = '[]' WHERE position = %s", (EVENTS + 2,))
    assert f"position {EVENTS + 2}: not the events that were stored" in auditor.refused()


def test_a_log_that_was_put_back_is_told_in_words(
    log: LedgerRecorder, auditor: Auditor, db: Db
) -> None:
    kept = auditor.sign()
    db.execute("DELETE FROM events WHERE position > 9")
    db.execute(
        "UPDATE log_head SET (position, chain) ="
        " (SELECT position, chain FROM events WHERE position = 9)"
    )
    assert "ends at position 9, and its newest checkpoint is of 12" in auditor.refused()
    code, _, err = auditor.run("verify", "--checkpoint", kept)
    assert (code, "the log ends before the signed checkpoint" in err) == (4, True)


def test_a_directory_of_another_key_or_changed_is_refused(
    log: LedgerRecorder, auditor: Auditor
) -> None:
    auditor.sign()
    [tile] = auditor.directory.glob("tile/0/000.p/*")
    whole = tile.read_bytes()
    tile.write_bytes(whole[:-1] + b"x")
    assert "not those that the newest checkpoint is of" in auditor.refused()
    tile.write_bytes(whole[:-1])
    assert "too short" in auditor.refused()
    tile.write_bytes(whole)
    auditor.new_key()
    assert "not signed with this key" in auditor.refused()
    auditor.private.write_text("nonsense")
    assert "openssl pkey: " in auditor.refused()
    rsa = ["openssl", "genrsa", "-out", str(auditor.private)]
    subprocess.run(rsa, check=True, capture_output=True)
    assert "has no Ed25519 key" in auditor.refused()


def test_an_empty_log_is_not_signed(database_url: str, auditor: Auditor) -> None:
    assert "the log is empty" in auditor.refused()
    assert auditor.run("prove", "1", "--from", auditor.directory)[0] == 3


def test_detached_months_are_signed_and_proven_from_their_files(
    past: Past, archived: Archive, auditor: Auditor, db: Db
) -> None:
    list(detach(db, archived, day(6)))
    [gone] = db.execute(
        "SELECT min(n) FROM generate_series(1, 60) AS n"
        " WHERE NOT EXISTS (SELECT FROM events WHERE position = n)"
    ).fetchall()[0]
    assert "archive" in auditor.refused()
    files = ("--archive", archived.directory)
    kept = auditor.sign(*files)
    assert auditor.run("verify", "--checkpoint", kept, *files)[0] == 0
    done = auditor.check(auditor.prove(str(gone), *files))
    assert json.loads(done.stdout)["position"] == gone
    assert auditor.sign() == kept, "what was signed is not read again"


@pytest.mark.slow
def test_the_manual_is_typed(
    log: LedgerRecorder, auditor: Auditor, database_url: str, tmp_path: Path
) -> None:
    text = PAGE.partition("## Proofs for others")[2]
    blocks = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    make, prove, check = ("".join(block).replace("$ ", "") for block in blocks)
    shutil.copy(check_proof.__file__, tmp_path)

    def typed(lines: str) -> str:
        lines = lines.replace("/etc/attachment-ledger/", "").replace(" /checkpoints", " signed")
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", lines],
            cwd=tmp_path,
            env={
                "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
                "LEDGER_DATABASE_URL": database_url,
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert typed(make).startswith("attachment-ledger/")
    (auditor.directory / "checkpoint").rename(tmp_path / "earlier.checkpoint")
    shutil.copy(tmp_path / "earlier.checkpoint", auditor.directory / "checkpoint")
    shutil.copy(auditor.directory / "public-key", tmp_path)
    append(log, 5)
    typed(make.splitlines()[1])
    typed(prove)
    said = typed(check)
    assert f'"position": {EVENTS}' in said
    assert f"The log of {EVENTS + 5} events begins with the log of {EVENTS}." in said


@settings(
    max_examples=200,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    deadline=None,
)
@given(data=st.data())
def test_no_changed_proof_proves_another_event(data: st.DataObject) -> None:
    text, key = example()
    at = data.draw(st.integers(0, len(text) - 1))
    new = data.draw(st.sampled_from("AZaz09+/=\n x"))
    changed = text[:at] + new + text[at + 1 :]
    try:
        proven = check_proof.check_event(changed, key)
    except ProofError:
        return
    assert proven == check_proof.check_event(text, key)


def example() -> tuple[str, PublicKey]:
    """A proof of the third of seven events, by a key of a library's."""
    rest: Any = [None] * 11
    rows = [
        StoredRow._make((n, uuid4(), 1, "T.H", b"{}", day(3), *rest, uuid4())) for n in range(1, 8)
    ]
    entries = [encode(row) for row in rows]
    leaves = [leaf_hash(each) for each in entries]
    private = Ed25519PrivateKey.from_private_bytes(b"k" * 32)
    key = PublicKey("attachment-ledger/x", private.public_key().public_bytes_raw())
    checkpoint = TreeCheckpoint(key.name, 7, plain_root(leaves))
    note = checkpoint.signed(key, private.sign(checkpoint.text.encode()))
    path = [leaves[3], node_hash(leaves[0], leaves[1]), plain_root(leaves[4:])]
    return check_proof.proof_text(2, entries[2], path, note), key
