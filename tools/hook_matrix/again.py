"""Print as JSON what hooks do that a class registers when it is loaded, by kind."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from matrixlib.again import REGISTER, Again

import modpack


def outcomes(kind: str, adds: bool, folder: Path) -> tuple[bool, bool]:
    """Return whether the right hooks run after a load, and whether the handle removes its own."""
    modpack.save(Again(kind, adds), folder / "net.modpack", self_test=False)
    loaded = modpack.load(folder / "net.modpack")
    runs_once = loaded.observe() == (["own", "added"] if adds else ["own"])
    loaded.handle.remove()
    return runs_once, loaded.observe() == (["own"] if adds else [])


with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    found = {k: [*outcomes(k, False, folder), *outcomes(k, True, folder)] for k in REGISTER}
print(json.dumps(found))
