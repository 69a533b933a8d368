"""What a package index shows of the project: links that work there, or none."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

ROOT = Path(__file__).parents[3]
HOME = "https://example.org/modpack"
PAGE = """\
See [the tutorial](docs/tutorial.md#start), [below](#below) and [torch](https://pytorch.org).
![The report](docs/images/audit.png)

```md
[shown](as/it/is.md)
```
"""


@pytest.fixture
def indexpage(monkeypatch) -> ModuleType:
    """The build hook, without the build backend, which builds install for themselves."""
    interface = SimpleNamespace(MetadataHookInterface=object)
    monkeypatch.setitem(sys.modules, "hatchling.metadata.plugin.interface", interface)
    spec = importlib.util.spec_from_file_location("indexpage", ROOT / "tools" / "indexpage.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def metadata_of(indexpage: ModuleType, root: Path, repository: str) -> dict[str, object]:
    hook = indexpage.IndexPage()
    hook.root, hook.config = str(root), {"repository": repository}
    metadata: dict[str, object] = {}
    hook.update(metadata)
    return metadata


def test_metadata_of_published_project_has_absolute_links(indexpage, tmp_path):
    (tmp_path / "README.md").write_text(PAGE, encoding="utf-8")
    metadata = metadata_of(indexpage, tmp_path, f"{HOME}/")
    text = metadata["readme"]["text"]
    assert f"[the tutorial]({HOME}/blob/main/docs/tutorial.md#start)" in text
    assert f"![The report]({HOME}/raw/main/docs/images/audit.png)" in text
    for unchanged in ("[below](#below)", "[torch](https://pytorch.org)", "[shown](as/it/is.md)"):
        assert unchanged in text
    assert metadata["urls"]["Repository"] == HOME
    assert metadata["urls"]["Changelog"] == f"{HOME}/blob/main/CHANGELOG.md"


def test_metadata_of_unpublished_project_has_text_instead_of_links(indexpage, tmp_path):
    (tmp_path / "README.md").write_text(PAGE, encoding="utf-8")
    metadata = metadata_of(indexpage, tmp_path, "")
    text = metadata["readme"]["text"]
    assert text.startswith("See the tutorial, [below](#below) and [torch]")
    assert "\nThe report\n" in text and "[shown](as/it/is.md)" in text
    assert metadata["urls"] == {}


@pytest.mark.parametrize("repository", ["", HOME])
def test_readme_has_no_relative_link_in_metadata(indexpage, repository):
    text = metadata_of(indexpage, ROOT, repository)["readme"]["text"]
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    links = re.findall(r"\]\(([^)\s]+)\)", prose)
    assert [link for link in links if not re.match(r"https?:|#", link)] == []


def test_classifiers_name_the_pythons_from_the_oldest_on():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    oldest = int(re.search(r'requires-python = ">=3\.(\d+)"', text)[1])
    named = [
        int(minor) for minor in re.findall(r'"Programming Language :: Python :: 3\.(\d+)"', text)
    ]
    assert named == list(range(oldest, oldest + len(named))) and len(named) > 2


def test_issue_forms_lead_to_the_repository():
    repository = re.search(r'^repository = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.M)
    assert repository is not None
    forms = (ROOT / ".github" / "ISSUE_TEMPLATE" / "config.yml").read_text()
    assert f"url: {repository[1]}/security/advisories/new" in forms
