"""Takes a recipe through all its processes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bare import bare_python, normalized
from shared import OK

HERE = Path(__file__).parent
TIME_LIMIT = float(os.environ.get("CORPUS_TIME_LIMIT", 600))


@dataclass
class Side:
    """What came of a recipe with one of the two packagers.

    Attributes:
        steps: ``ok`` or an error in one line, by the name of the step, in order.
        seconds: how long each step took.
        size: of the package, in bytes.
        sources: how many Python sources the package holds.
        modules: how many modules there are of each decision.
        namespace: which one the package was loaded into.
        why: what its self-test said about that, if it is the process namespace.
        hidden: the distributions that were not there when it was loaded.
        notes: the warnings in the plan.
        refusal: why modpack wrote no package, in its own words; empty if it did not refuse to.
    """

    steps: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    size: int = 0
    sources: int = 0
    modules: dict[str, int] = field(default_factory=dict)
    namespace: str = ""
    why: str = ""
    hidden: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    refusal: str = ""

    @property
    def passed(self) -> bool:
        """Whether every step went well, and the output was compared."""
        return "run" in self.steps and set(self.steps.values()) == {OK}

    @property
    def failure(self) -> str:
        """The first step that failed, and why; empty if none did."""
        failed = (f"{step}: {what}" for step, what in self.steps.items() if what != OK)
        return next(failed, "" if self.passed else "it was never run")


@dataclass
class Result:
    """What came of one recipe.

    Attributes:
        recipe: its name.
        libraries: the distributions it is about.
        compiled: more of them, which are extern: they have compiled code.
        modpack: with modpack, and no rule.
        torch: with torch.package, and rules for it.
    """

    recipe: str
    libraries: list[str]
    modpack: Side
    torch: Side
    compiled: list[str] = field(default_factory=list)

    def as_json(self) -> str:
        """All of it."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Result:
        """The result that :meth:`as_json` wrote."""
        told = json.loads(text)
        ours, theirs = Side(**told["modpack"]), Side(**told["torch"])
        return cls(told["recipe"], told["libraries"], ours, theirs, told.get("compiled", []))


class Case:
    """One recipe on its way; everything of it is in one folder.

    Args:
        recipe: its name.
        folder: emptied first. ``log.txt`` there gets what the processes print.
    """

    def __init__(self, recipe: str, folder: Path) -> None:
        self._recipe = recipe
        self._folder = folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "cwd").mkdir()

    def run(self, beside_torch: bool = True) -> Result:
        """Package it, load it where its libraries are not, and package what was loaded.

        Args:
            beside_torch: whether to do the same with torch.package.
        """
        ours = Side()
        saved = self._saved(ours)
        theirs = Side()
        if "stubs" in saved:
            self._load_ours(ours, saved)
            self._audit_ours(ours)
            if beside_torch:
                self._with_torch_package(theirs, saved["libraries"])
        libraries, compiled = saved.get("libraries", []), saved.get("compiled", [])
        return Result(self._recipe, libraries, ours, theirs, compiled)

    def _saved(self, side: Side) -> dict[str, Any]:
        told = self._python(sys.executable, "saving.py", self._recipe, self._folder)
        saved = self._report("saved.json", side, told, "build")
        side.modules = {action: len(names) for action, names in saved.get("modules", {}).items()}
        side.notes = saved.get("notes", [])
        side.hidden = saved.get("hidden", [])
        side.refusal = saved.get("refusal", "")
        self._measure(side, self._folder / "net.modpack")
        return saved

    def _load_ours(self, side: Side, saved: dict[str, Any]) -> None:
        if not (self._folder / "net.modpack").exists():
            return
        told = _misplaced(saved)
        if told:
            side.steps["hermetic"] = told
        python = self._bare("bare", saved["hidden"])
        told = self._python(python, "reloading.py", self._folder, self._folder / "net.modpack")
        loaded = self._report("net.modpack.json", side, told, "load")
        side.namespace = loaded.get("namespace", "") if side.modules.get("interned") else ""
        again = self._folder / "again.modpack"
        if again.exists():
            told = self._python(python, "reloading.py", self._folder, again)
            self._report("again.modpack.json", side, told, "load", "again ")

    def _audit_ours(self, side: Side) -> None:
        if (self._folder / "net.modpack").exists():
            told = self._python(sys.executable, "auditing.py", self._folder)
            self._report("audit.json", side, told, "audit")

    def _with_torch_package(self, side: Side, libraries: list[str]) -> None:
        told = self._python(sys.executable, "saving.py", self._recipe, self._folder, "--torch")
        self._report("torch-saved.json", side, told, "build")
        package = self._folder / "net.pt"
        if side.steps.get("save") != OK:
            return
        self._measure(side, package)
        side.hidden = [normalized(name) for name in libraries]
        python = self._bare("bare-torch", side.hidden)
        told = self._python(python, "reloading.py", self._folder, package)
        self._report("net.pt.json", side, told, "load")

    def _bare(self, name: str, hidden: list[str]) -> Path:
        return bare_python(self._folder / name, hidden)

    def _measure(self, side: Side, package: Path) -> None:
        if package.exists():
            side.size = package.stat().st_size
            with zipfile.ZipFile(package) as archive:
                names = archive.namelist()
                side.sources = sum(name.endswith(".py") for name in names)
                for name in (name for name in names if name.endswith("/modpack/trial.json")):
                    side.why = json.loads(archive.read(name)).get("why_process") or ""

    def _report(
        self, name: str, side: Side, told: str | None, step: str, prefix: str = ""
    ) -> dict[str, Any]:
        """Note what a process wrote down, or why it wrote nothing."""
        file = self._folder / name
        if told is not None or not file.exists():
            side.steps[prefix + step] = told or "the process wrote nothing"
            return {}
        report: dict[str, Any] = json.loads(file.read_text())
        side.steps |= {prefix + step: what for step, what in report["steps"].items()}
        side.seconds |= {prefix + step: took for step, took in report["seconds"].items()}
        return report

    def _python(self, python: str | Path, script: str, *arguments: str | Path) -> str | None:
        """Run a script; None if it went well, or what went wrong in a line."""
        command = [str(python), "-I", "-W", "ignore", str(HERE / script), *map(str, arguments)]
        if script == "saving.py":
            command.remove("-I")
        printed, status = _printed_by(command, self._folder / "cwd", self._variables())
        with (self._folder / "log.txt").open("a") as log:
            log.write(f"$ {' '.join(command)}\n{printed}")
        if status is None:
            return f"not done after {TIME_LIMIT} seconds"
        return f"exit status {status}: {_last_line(printed)}" if status else None

    def _variables(self) -> dict[str, str]:
        mine = {"MODPACK_CACHE_DIR": "cache", "HF_HOME": "home", "MPLCONFIGDIR": "home"}
        kept = {key: os.environ[key] for key in ("PATH", "HOME", "LANG") if key in os.environ}
        return {
            **kept,
            **{key: str(self._folder / folder) for key, folder in mine.items()},
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
        }


def _misplaced(saved: dict[str, Any]) -> str:
    """The libraries whose code is not where it should be, in a few words; empty if none."""
    told = []
    for place, wanted in (("interned", saved["libraries"]), ("extern", saved["compiled"])):
        missed = sorted({normalized(name) for name in wanted} - set(saved[place]))
        if missed:
            told.append(f"not {place}: {', '.join(missed)}")
    return "; ".join(told)


def _printed_by(
    command: list[str], folder: Path, variables: dict[str, str]
) -> tuple[str, int | None]:
    """What a process printed, and its exit status; None if it took too long."""
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    try:
        return process.communicate(timeout=TIME_LIMIT)[0], process.returncode
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()[0], None


def _last_line(printed: str) -> str:
    lines = (line.strip() for line in reversed(printed.splitlines()))
    return next(filter(None, lines), "")[:300]
