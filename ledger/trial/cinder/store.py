"""The model on disk: one JSON file, replaced as a whole and synced before an answer."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ledger.trial.cinder.model.model import CinderModel
from ledger.trial.cinder.model.rows import Backup, Late, Snapshot, StoredAttachment, StoredVolume


def dump(model: CinderModel) -> dict[str, Any]:
    """All rows as JSON; connection_info with its secrets included."""
    with model.lock:
        return {
            "driver": model.driver,
            "backends": [asdict(backend) for backend in model.backends.values()],
            "volumes": [asdict(volume) for volume in model.volumes.values()],
            "attachments": [asdict(row) for row in model.attachments.values()],
            "snapshots": [asdict(row) for row in model.snapshots.values()],
            "backups": [asdict(row) for row in model.backups.values()],
            "secrets": list(model.secrets),
        }


def restore(model: CinderModel, data: dict[str, Any]) -> None:
    """Put dumped rows into an empty model."""
    for item in data["backends"]:
        model.add_backend(**item)
    for item in data["volumes"]:
        for name in ("creating", "late_uuid", "going", "imaging"):
            item[name] = item[name] and Late(**item[name])
        model.put_volume(StoredVolume(**item))
    for item in data["attachments"]:
        model.put_attachment(StoredAttachment(**item))
    for item in data["snapshots"]:
        model.snapshots[item["id"]] = Snapshot(**item)
    for item in data["backups"]:
        model.backups[item["id"]] = Backup(**item)
    model.secrets.extend(data["secrets"])


class CinderStore:
    """Keeps a model in a file, so that it survives a crash of its server."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self, model: CinderModel) -> None:
        """Load what was saved last; nothing if there is no file."""
        if self._path.exists():
            restore(model, json.loads(self._path.read_text()))

    def save(self, model: CinderModel) -> None:
        draft = self._path.with_name(self._path.name + ".new")
        with draft.open("w") as out:
            json.dump(dump(model), out)
            out.flush()
            os.fsync(out.fileno())
        draft.replace(self._path)
