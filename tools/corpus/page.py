"""The page that shows what came of all recipes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from runner import Result, Side

HEAD = """\
# The corpus: models of real libraries

<!-- Made by `make corpus`. Do not edit. -->

Each row is a model with random weights, of the libraries in the second column. Those in parentheses
have compiled code, which no package holds: they are extern, and must be installed where it is
loaded. The model was built and packaged in one process with

```py
modpack.save(model, "net.modpack", preset="hermetic", example_inputs=inputs)
```

and no rule, and loaded in another, whose environment lacks every distribution that the package
holds code of: their files and their metadata, whoever installed them. (What torch and modpack
require themselves is there.) `passed` says that

- the model put out what the original did, every number equal to the last bit;
- a `copy.deepcopy` of it put out what one of the original did;
- `inspect.getsource` of its class gave the original source, and `torch.save` took it, where they
  do that for the original;
- the loaded model was packaged again, with the same line and `importer=[importer_of(model),
  sys_importer]`, and what a third process loaded from that, where the libraries are missing as
  well, put out the same;
- `modpack audit` of the package found no error, and named as extern the distributions that the
  files of the extern modules belong to, and no others.

`refused` says that `modpack.save` wrote no package, and raised an error of its own that says why;
the beginning of each is below. No recipe works around a refusal. `fails` is anything else.

Beside it is torch.package, with rules written for each recipe: the library's modules and the
recipe's interned, all others extern. There only the library itself is missing when it is loaded,
and loading and one equal output pass.

`save` has the self-test in it, and `load` the unpacking of the package, as on a machine that sees
it for the first time; torch itself was imported before. Seconds on two cores, which vary. `code` is
how many modules are interned, extern and mocked; for torch.package, how many sources the package
holds. `size` is the whole package, with the weights.
"""

OURS = ("model", "libraries", "modpack", "namespace", "save", "load", "size", "code")
THEIRS = ("torch.package", "save", "load", "size", "code")


def rendered(results: Sequence[Result]) -> str:
    """The page, in Markdown."""
    heads = [*OURS, *THEIRS]
    table = [_line(heads), _line(["---"] * len(heads)), *map(_row, results)]
    lines = [HEAD, *_summary(results), "", *table, "", *_below(results)]
    return "\n".join(lines).rstrip() + "\n"


def _summary(results: Sequence[Result]) -> Iterator[str]:
    ours, theirs = sum(r.modpack.passed for r in results), sum(r.torch.passed for r in results)
    refused = sum(bool(r.modpack.refusal) for r in results)
    private = sum(r.modpack.passed and r.modpack.namespace == "private" for r in results)
    yield (
        f"**{len(results)} models: {ours} passed with modpack and no rule, {private} of them in "
        f"the private namespace; {refused} refused; {theirs} passed with torch.package and rules.**"
    )


def _row(result: Result) -> str:
    ours, theirs = result.modpack, result.torch
    cells = [
        f"`{result.recipe}`",
        ", ".join([*result.libraries, *(f"({name})" for name in result.compiled)]),
        _outcome(ours),
        ours.namespace,
        _seconds(ours, "save"),
        _seconds(ours, "load"),
        _size(ours),
        _decisions(ours),
        _outcome(theirs),
        _seconds(theirs, "save"),
        _seconds(theirs, "load"),
        _size(theirs),
        str(theirs.sources or ""),
    ]
    return _line(cells)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _outcome(side: Side) -> str:
    if side.passed:
        return "passed"
    if side.refusal:
        return "refused"
    return f"**fails** in {side.failure.partition(':')[0]}"


def _seconds(side: Side, step: str) -> str:
    return f"{side.seconds[step]:.1f}" if side.steps.get(step) == "ok" else ""


def _size(side: Side) -> str:
    return f"{side.size / 1e6:.1f} MB" if side.size else ""


def _decisions(side: Side) -> str:
    numbers = [side.modules.get(decision, 0) for decision in ("interned", "externed", "mocked")]
    return " / ".join(map(str, numbers)) if side.modules else ""


def _below(results: Sequence[Result]) -> Iterator[str]:
    """The sections after the table."""
    ours, theirs = ({r.recipe: getattr(r, each) for r in results} for each in ("modpack", "torch"))
    why = {recipe: f"`{_short(side.why)}`" for recipe, side in ours.items() if side.why}
    yield from _section("Why in the process namespace", why)
    refused = {name: f"`{_short(side.refusal)}`" for name, side in ours.items() if side.refusal}
    yield from _section("What modpack refuses", refused)
    yield from _section("What fails with modpack", _failures(ours))
    yield from _section("What fails with torch.package", _failures(theirs))


def _section(title: str, said: Mapping[str, str]) -> Iterator[str]:
    """A list of what was said of recipes, if there is any."""
    if said:
        yield f"## {title}"
        yield ""
        yield from (f"- `{recipe}`: {text}" for recipe, text in said.items())
        yield ""


def _failures(sides: Mapping[str, Side]) -> dict[str, str]:
    failed = {name: s.failure.partition(": ") for name, s in sides.items() if s.failure}
    return {
        name: f"{step}: `{_short(what)}`"
        for name, (step, _, what) in failed.items()
        if not sides[name].refusal
    }


def _short(text: str) -> str:
    """Words of an error in one line of code, without the folders of this machine."""
    words = " ".join(text.replace("`", "'").split())
    return re.sub(r"/[^\s'\"]*/", "", words)[:200]
