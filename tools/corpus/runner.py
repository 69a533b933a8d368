"""Run all processes of a recipe."""

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
    """The results of a recipe with modpack or torch.package.

    Attributes:
        steps: ``ok`` or an error in one line, by step, in order.
        seconds: Duration of each step.
        size: Size of the package in bytes.
        sources: Number of Python sources in the package.
        modules: Number of modules by decision.
        namespace: Namespace that the package was loaded into.
        why: Reason for the process namespace, from the self-test.
        hidden: Distributions that were hidden from the loading process.
        notes: Notes of the plan.
        codes: Number of notes by diagnostic code.
        warnings: Warnings that saving issued.
        refusal: Text of modpack's own error if it wrote no package.
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
    codes: dict[str, int] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    refusal: str = ""

    @property
    def passed(self) -> bool:
        """Whether all steps succeeded, including the comparison of outputs."""
        return "run" in self.steps and set(self.steps.values()) == {OK}

    @property
    def failure(self) -> str:
        """The first failed step and its error, or an empty string."""
        failed = (f"{step}: {text}" for step, text in self.steps.items() if text != OK)
        return next(failed, "" if self.passed else "the model was never run")


@dataclass
class Result:
    """The results of one recipe.

    Attributes:
        recipe: Name of the recipe.
        libraries: Distributions that the recipe tests.
        compiled: More such distributions, with native extensions. They are extern.
        modpack: Results with modpack, without rules.
        torch: Results with torch.package, with rules.
    """

    recipe: str
    libraries: list[str]
    modpack: Side
    torch: Side
    compiled: list[str] = field(default_factory=list)

    def as_json(self) -> str:
        """Return the result as JSON."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Result:
        """Return the result that :meth:`as_json` wrote."""
        fields = json.loads(text)
        ours, theirs = Side(**fields["modpack"]), Side(**fields["torch"])
        return cls(fields["recipe"], fields["libraries"], ours, theirs, fields.get("compiled", []))


class Case:
    """One recipe and its folder.

    Args:
        recipe: Name of the recipe.
        folder: Folder for all files. Emptied first. ``log.txt`` contains the processes' output.
        is_trained: Whether the model takes a training step before it is saved.
    """

    def __init__(self, recipe: str, folder: Path, is_trained: bool = False) -> None:
        self._recipe = recipe
        self._trained = ["--trained"] if is_trained else []
        self._folder = folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "cwd").mkdir()

    def run(self, with_torch_package: bool = True) -> Result:
        """Package the model, load it without its libraries, and re-export it.

        Args:
            with_torch_package: Whether to repeat this with torch.package.
        """
        ours = Side()
        saved = self._save(ours)
        theirs = Side()
        if "stubs" in saved:
            self._load_ours(ours, saved)
            self._audit_ours(ours)
            if with_torch_package:
                self._with_torch_package(theirs, saved["libraries"])
        libraries, compiled = saved.get("libraries", []), saved.get("compiled", [])
        return Result(self._recipe, libraries, ours, theirs, compiled)

    def _save(self, side: Side) -> dict[str, Any]:
        error = self._python(
            sys.executable, "saving.py", self._recipe, self._folder, *self._trained
        )
        saved = self._report("saved.json", side, error, "build")
        side.modules = {action: len(names) for action, names in saved.get("modules", {}).items()}
        for name in ("notes", "codes", "warnings"):
            setattr(side, name, saved.get(name, getattr(side, name)))
        side.hidden = saved.get("hidden", [])
        side.refusal = saved.get("refusal", "")
        self._measure(side, self._folder / "net.modpack")
        return saved

    def _load_ours(self, side: Side, saved: dict[str, Any]) -> None:
        if not (self._folder / "net.modpack").exists():
            return
        if misplaced := _misplaced(saved):
            side.steps["hermetic"] = misplaced
        python = self._bare("bare", saved["hidden"])
        error = self._python(python, "reloading.py", self._folder, self._folder / "net.modpack")
        loaded = self._report("net.modpack.json", side, error, "load")
        side.namespace = loaded.get("namespace", "") if side.modules.get("interned") else ""
        again = self._folder / "again.modpack"
        if again.exists():
            error = self._python(python, "reloading.py", self._folder, again)
            self._report("again.modpack.json", side, error, "load", "again ")

    def _audit_ours(self, side: Side) -> None:
        if (self._folder / "net.modpack").exists():
            error = self._python(sys.executable, "auditing.py", self._folder)
            self._report("audit.json", side, error, "audit")

    def _with_torch_package(self, side: Side, libraries: list[str]) -> None:
        error = self._python(sys.executable, "saving.py", self._recipe, self._folder, "--torch")
        self._report("torch-saved.json", side, error, "build")
        package = self._folder / "net.pt"
        if side.steps.get("save") != OK:
            return
        self._measure(side, package)
        side.hidden = [normalized(name) for name in libraries]
        python = self._bare("bare-torch", side.hidden)
        error = self._python(python, "reloading.py", self._folder, package)
        self._report("net.pt.json", side, error, "load")

    def _bare(self, name: str, hidden: list[str]) -> Path:
        return bare_python(self._folder / name, hidden)

    def _measure(self, side: Side, package: Path) -> None:
        if package.exists():
            side.size = package.stat().st_size
            with zipfile.ZipFile(package) as archive:
                names = archive.namelist()
                side.sources = sum(name.endswith(".py") for name in names)
                for name in (name for name in names if name.endswith("/modpack/self_test.json")):
                    side.why = json.loads(archive.read(name)).get("private_failure") or ""

    def _report(
        self, name: str, side: Side, error: str | None, step: str, prefix: str = ""
    ) -> dict[str, Any]:
        """Add a process's report to the results, or its error."""
        file = self._folder / name
        if error is not None or not file.exists():
            side.steps[prefix + step] = error or "the process wrote no report"
            return {}
        report: dict[str, Any] = json.loads(file.read_text())
        side.steps |= {prefix + step: text for step, text in report["steps"].items()}
        side.seconds |= {prefix + step: took for step, took in report["seconds"].items()}
        return report

    def _python(self, python: str | Path, script: str, *arguments: str | Path) -> str | None:
        """Run a script, and return its error in one line, or None."""
        command = [str(python), "-I", "-W", "ignore", str(HERE / script), *map(str, arguments)]
        if script == "saving.py":
            command.remove("-I")
        printed, status = _printed_by(command, self._folder / "cwd", self._variables())
        with (self._folder / "log.txt").open("a") as log:
            log.write(f"$ {' '.join(command)}\n{printed}")
        if status is None:
            return f"not finished after {TIME_LIMIT} seconds"
        return f"exit status {status}: {_last_line(printed)}" if status else None

    def _variables(self) -> dict[str, str]:
        folders = {"MODPACK_CACHE_DIR": "cache", "HF_HOME": "home", "MPLCONFIGDIR": "home"}
        kept = {key: os.environ[key] for key in ("PATH", "HOME", "LANG") if key in os.environ}
        return {
            **kept,
            **{key: str(self._folder / folder) for key, folder in folders.items()},
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
        }


def _misplaced(saved: dict[str, Any]) -> str:
    """Describe the libraries that are not interned or extern as expected."""
    texts = []
    for decision, wanted in (("interned", saved["libraries"]), ("extern", saved["compiled"])):
        missing = sorted({normalized(name) for name in wanted} - set(saved[decision]))
        if missing:
            texts.append(f"not {decision}: {', '.join(missing)}")
    return "; ".join(texts)


def _printed_by(
    command: list[str], folder: Path, variables: dict[str, str]
) -> tuple[str, int | None]:
    """Return a process's output and exit status. The status is None after a timeout."""
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
