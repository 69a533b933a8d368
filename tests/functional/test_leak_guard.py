"""Secrets are found before anything is written, and stop the export unless they are allowed."""

from __future__ import annotations

import hashlib
import importlib
import json

import pytest
import torch

import modpack
from modpack import (
    PackageExporter,
    PackageImporter,
    PackagingError,
    PackagingErrorReason,
    sys_importer,
)
from tests.warm_python import run_python

TOKEN = "ghp_" + "Zq8xVb71LmPo93TtRwAaZq8xVb71LmPo93Tt"
FROM_FOLDER = {"direct_url.json": '{"url": "file:///me", "dir_info": {}}'}
SOURCE = f"rate = 1\ntoken = {TOKEN!r}\n"
FINGERPRINT = hashlib.sha256(TOKEN.encode()).hexdigest()[:12]


def problems_of(save, **options):
    """What keeps an exporter from writing, as (subject, place, context)."""
    exporter = PackageExporter(None, **options)
    save(exporter)
    found = [p for p in exporter.plan().problems if p.code == PackagingErrorReason.POSSIBLE_SECRET]

    return [(problem.subject, problem.location, problem.message) for problem in found]


def test_secret_in_source_keeps_old_package(project, tmp_path):
    root = project({"shop.py": SOURCE, "other.py": f"key = {TOKEN!r}\nimport shop\n"})
    target = tmp_path / "shop.modpack"
    target.write_bytes(b"the old one")
    with pytest.raises(PackagingError) as caught, PackageExporter(target) as exporter:
        exporter.intern("shop")
        exporter.save_module("other")
    told = str(caught.value)
    assert f"{root / 'shop.py'}:2" in told and f"{root / 'other.py'}:1" in told
    assert f"shop#{FINGERPRINT}" in told and "'ghp_...' (40 characters)" in told
    assert TOKEN not in told
    assert target.read_bytes() == b"the old one"


def test_secret_in_attribute_has_attribute_path():
    model = torch.nn.Linear(2, 2)
    model.config = {"login": ["ann", {"password": TOKEN}]}
    model.register_forward_hook(HookWithKey())
    found = problems_of(lambda exporter: exporter.save_model("m", "m.pkl", model))
    assert ("m/m.pkl", "model.config['login'][1]['password']") in [each[:2] for each in found]
    [hook] = [each for each in found if "login" not in each[1]]
    assert "api_key" in hook[1] and "model._forward_hooks" in hook[1]


class HookWithKey:
    def __init__(self):
        self.api_key = TOKEN[::-1][:36].join(["ghp_", ""])

    def __call__(self, module, args, output):
        return None


def test_secret_in_saved_function_has_location():
    def answer():
        return "ghp_Zq8xVb71LmPo93TtRwAaZq8xVb71LmPo93Tt"

    [found] = problems_of(lambda exporter: exporter.save_pickle("m", "f.pkl", answer))
    assert found[0] == "m/f.pkl"
    assert found[1] == f"{__file__}:{answer.__code__.co_firstlineno}"


def test_secret_dictionary_key_is_not_shown():
    found = problems_of(lambda e: e.save_pickle("m", "m.pkl", {TOKEN: [1]}))
    assert found and TOKEN not in str(found)


@pytest.mark.parametrize("text", [SOURCE, f"a: 1\npassword: {TOKEN}\n"])
def test_saved_texts_are_scanned(text):
    [found] = problems_of(lambda exporter: exporter.save_text("shop", "conf.yaml", text))
    assert found[:2] == ("shop/conf.yaml", "shop/conf.yaml:2")


def test_included_file_is_scanned(project):
    root = project(
        {
            "shop/__init__.py": "from pathlib import Path\n"
            "words = (Path(__file__).parent / 'words.txt').read_text()\n",
            "shop/words.txt": f"one\n{TOKEN}\n",
        }
    )
    [found] = problems_of(lambda exporter: exporter.save_module("shop"))
    assert found[:2] == ("shop/words.txt", f"{root / 'shop' / 'words.txt'}:2")


def test_distribution_metadata_is_scanned(installed):
    badge = "![build](https://ci.example/badge?token=af199cd2deca9e70e53776f9ded96284b10687e9)\n"
    files = {"shop/__init__.py": "x = 1\n"}
    metadata = {**FROM_FOLDER, "LICENSE": badge, "AUTHORS": f"{TOKEN}\n"}
    installed("shop", files, metadata=metadata)
    assert [each[0] for each in problems_of(save_shop)] == ["shop-1.0.dist-info/AUTHORS"]


def test_passwords_and_digests_are_not_secrets(project):
    """Names and randomness do not count: they occur in every library's examples."""
    source = "password = 'Tr0ub4dor&3'\nurl = 'postgres://ann:Tr0ub4Dor3x@db.lan/shop'\n"
    project({"shop.py": f"{source}api_key = 'd8e8fca2dc0f896fd7cb4cb0031ba249'\n"})

    def save(exporter):
        exporter.save_module("shop")
        exporter.save_pickle("m", "m.pkl", {"password": "Tr0ub4dor&3"})
        exporter.save_text("shop", "conf.yaml", "password: Tr0ub4dor&3\n")

    assert problems_of(save) == []


def test_env_file_is_rejected_under_any_name():
    def save(exporter):
        exporter.save_text("shop", "prod.env", "DB_PASSWORD=Tr0ub4dor&3\n")
        exporter.save_text("shop", ".env.example", "DB_PASSWORD=...\n")

    found = problems_of(save)
    assert {each[0] for each in found} == {"shop/prod.env"}
    assert "a .env file" in found[0][2]


def test_value_of_nearby_env_file_is_detected(project):
    root = project({"shop/__init__.py": "greeting = 'marzipan&9&moon'\n", "pyproject.toml": ""})
    (root / ".env").write_text("GREETING_SECRET=marzipan&9&moon\n")

    def save(exporter):
        exporter.save_module("shop")
        exporter.save_pickle("shop", "state.pkl", ["marzipan&9&moon"])

    found = problems_of(save)
    assert {each[1] for each in found} == {f"{root / 'shop' / '__init__.py'}:1", "obj[0]"}
    assert all(f"the value of GREETING_SECRET in {root / '.env'}" in each[2] for each in found)


@pytest.mark.parametrize(
    "allowed", ["shop", "sho*", "**", f"shop#{FINGERPRINT}", ["no", f"**#{FINGERPRINT}"]]
)
def test_allowed_secret_is_included(allowed, tmp_path):
    with PackageExporter(tmp_path / "shop.modpack", allow_secrets_in=allowed) as exporter:
        exporter.save_source_string("shop", SOURCE)
    assert modpack.PackageImporter(tmp_path / "shop.modpack").get_source("shop") == SOURCE


@pytest.mark.parametrize("allowed", ["other", "shop#0123456789ab", "shop/*", ()])
def test_secret_outside_of_allowed_pattern_is_a_problem(allowed):
    def save(exporter):
        exporter.save_source_string("shop", SOURCE)

    assert len(problems_of(save, allow_secrets_in=allowed)) == 1


def test_pattern_with_slash_allows_records():
    def save(exporter):
        exporter.save_text("shop.data", "conf.ini", TOKEN)

    assert problems_of(save) != []
    assert problems_of(save, allow_secrets_in="shop*.*.*") != []
    assert problems_of(save, allow_secrets_in="shop/**") == []


def test_module_pattern_does_not_allow_records():
    def save(exporter):
        exporter.save_text("shop", "credentials", TOKEN)

    assert problems_of(save, allow_secrets_in="shop*") != []
    assert problems_of(save, allow_secrets_in="shop/*") == []


def test_comment_allows_line():
    text = f"token = {TOKEN!r}  # modpack: not a secret\n"
    assert problems_of(lambda exporter: exporter.save_source_string("shop", text)) == []


def test_torchscript_code_is_scanned():
    class Net(torch.nn.Module):
        def forward(self, x, token: str = "ghp_Zq8xVb71LmPo93TtRwAaZq8xVb71LmPo93Tt"):
            return x

    scripted = torch.jit.script(Net())
    found = problems_of(lambda exporter: exporter.save_pickle("m", "m.pkl", scripted))
    assert any("a GitHub token" in each[2] for each in found)


@pytest.mark.parametrize(
    ("allowed", "error"),
    [(1, TypeError), ([1], TypeError), ("a#b", ValueError), ("a..b", ValueError)],
)
def test_invalid_pattern_is_rejected(allowed, error):
    with pytest.raises(error, match="allow_secrets_in"):
        PackageExporter(None, allow_secrets_in=allowed)


def test_save_accepts_allow_secrets_in(tmp_path):
    state = {"password": TOKEN}
    with pytest.raises(PackagingError, match=r"obj\['password'\]|model\['password'\]"):
        modpack.save(state, tmp_path / "a.modpack")
    modpack.save(state, tmp_path / "a.modpack", allow_secrets_in="__model__/model.pkl")
    assert modpack.load(tmp_path / "a.modpack") == state


def command(folder, *arguments):
    return run_python("-m", "modpack", *arguments, folder=folder)


def test_commands_report_and_allow_secrets(tmp_path):
    (tmp_path / "shop.py").write_text(f"{SOURCE}class Net:\n    pass\n\n\nnet = Net()\n")
    done = command(tmp_path, "export", "shop:net", "-o", "a.modpack")
    assert done.returncode == 1 and "shop.py:2" in done.stdout
    assert TOKEN not in done.stdout + done.stderr
    assert not (tmp_path / "a.modpack").exists()
    plan = command(tmp_path, "export", "shop:net", "--dry-run", "--json")
    assert plan.returncode == 1
    [problem] = json.loads(plan.stdout)["problems"]
    assert (problem["code"], problem["subject"]) == ("possible-secret", "shop")
    allow = ["--allow-secrets-in", f"shop#{FINGERPRINT}"]
    assert command(tmp_path, "export", "shop:net", "--dry-run", *allow).returncode == 0
    (tmp_path / "pyproject.toml").write_text('[tool.modpack]\nallow_secrets_in = ["shop"]\n')
    done = command(tmp_path, "export", "shop:net", "-o", "a.modpack")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("text", ["1", "[1]", '"a#b"', '"a..b"'])
def test_invalid_pattern_in_pyproject_is_reported(tmp_path, text):
    (tmp_path / "pyproject.toml").write_text(f"[tool.modpack]\nallow_secrets_in = {text}\n")
    done = command(tmp_path, "export", "shop:net", "-o", "a.modpack")
    assert done.returncode == 2 and "tool.modpack.allow_secrets_in" in done.stderr


def test_invalid_option_is_reported(tmp_path):
    done = command(tmp_path, "export", "shop:net", "-o", "a", "--allow-secrets-in", "a#b")
    assert done.returncode == 2 and "12 hex digits" in done.stderr


def test_cached_source_with_secret_is_rejected_again(project):
    project({"shop.py": SOURCE})

    def save(exporter):
        exporter.intern("shop")
        exporter.save_source_string("main_shop", "import shop")

    first = problems_of(save)
    assert [subject for subject, _, _ in first] == ["shop"]
    assert problems_of(save) == first


def test_cached_clean_source_is_checked_against_env_files(project):
    root = project({"shop.py": "name = 'kq82-Zs0v-T1xx'\n", "pyproject.toml": ""})

    def save(exporter):
        exporter.intern("shop")
        exporter.save_source_string("main_shop", "import shop")

    assert problems_of(save) == []
    (root / ".env").write_text("SHOP_PASSWORD=kq82-Zs0v-T1xx\n")
    assert [subject for subject, _, _ in problems_of(save)] == ["shop"]


def test_cached_clean_file_is_checked_against_env_files(project):
    source = "from pathlib import Path\nTEXT = (Path(__file__).parent / 'kept.txt').read_text()\n"
    files = {"shop/__init__.py": source, "shop/kept.txt": "kq82-Zs0v-T1xx", "pyproject.toml": ""}
    root = project(files)

    def save(exporter):
        exporter.save_module("shop")

    assert problems_of(save) == problems_of(save) == []
    (root / ".env").write_text("SHOP_PASSWORD=kq82-Zs0v-T1xx\n")
    assert [subject for subject, _, _ in problems_of(save)] == ["shop/kept.txt"]
    (root / ".env").unlink()
    (root / "shop" / "kept.txt").write_text(TOKEN)
    assert [subject for subject, _, _ in problems_of(save)] == ["shop/kept.txt"]


def save_shop(exporter):
    exporter.use_preset("hermetic")
    exporter.save_source_string("net", "import shop")


SHOP = {
    "shop/__init__.py": "import shop.till\n",
    "shop/till.py": f"token = {TOKEN!r}\n",
    "shop/examples.json": f'["{TOKEN}"]',
}


def notes_of(save):
    with PackageExporter(None) as exporter:
        save(exporter)
        plan = exporter.plan()
    assert plan.problems == ()
    return [each for each in plan.notes if each.code == "published-secret"]


def test_secret_published_by_a_library_is_a_note(installed):
    site = installed("shop", SHOP)
    notes = {each.subject: each for each in notes_of(save_shop)}
    assert set(notes) == {"shop.till", "shop/examples.json"}
    assert notes["shop.till"].location == f"{site / 'shop' / 'till.py'}:1"
    assert "which shop==1.0 contains as released" in notes["shop.till"].message
    assert TOKEN not in notes["shop.till"].message


def test_secret_published_by_a_library_stays_a_note_on_reexport(installed, tmp_path):
    installed("shop", SHOP)
    with PackageExporter(tmp_path / "first.modpack") as exporter:
        save_shop(exporter)
    importer = PackageImporter(tmp_path / "first.modpack")
    with PackageExporter(None, importer=[importer, sys_importer]) as exporter:
        save_shop(exporter)
        plan = exporter.plan()
    assert plan.problems == ()
    assert "published-secret" in {each.code for each in plan.notes}


def test_secret_in_edited_file_of_a_library_is_a_problem(installed):
    site = installed("shop", {"shop/__init__.py": "import shop.till\n", "shop/till.py": "x = 1\n"})
    (site / "shop" / "till.py").write_text(f"token = {TOKEN!r}\n")
    assert {each[0] for each in problems_of(save_shop)} == {"shop.till"}


def test_secret_in_project_installed_from_a_folder_is_a_problem(installed):
    installed("shop", SHOP, metadata=FROM_FOLDER)
    assert {each[0] for each in problems_of(save_shop)} == {"shop.till", "shop/examples.json"}


def test_installed_library_is_checked_against_env_files(installed, project):
    root = project({"pyproject.toml": ""})
    (root / ".env").write_text("SHOP_PASSWORD=Tr0ub4dor&3\n")
    installed("shop", {"shop/__init__.py": "word = 'Tr0ub4dor&3'\n"})
    assert {each[0] for each in problems_of(save_shop)} == {"shop"}


def test_secret_has_chain_and_excluding_rule(installed, project, tmp_path):
    installed("shop", SHOP, metadata=FROM_FOLDER)
    project({"own.py": f"import shop.till\n{SOURCE}class Net:\n    pass\n"})

    def save(exporter):
        exporter.use_preset("hermetic")
        exporter.save_pickle("m", "m.pkl", importlib.import_module("own").Net)

    with pytest.raises(PackagingError) as caught, PackageExporter(tmp_path / "a") as exporter:
        save(exporter)
    assert "<m/m.pkl> -> own -> shop.till\n" in str(caught.value)
    hints = {problem.subject: problem.hint for problem in caught.value.problems}
    assert "mock('shop.**')" in hints["shop.till"]
    assert "mock('shop.**')" in hints["shop/examples.json"]
    assert "mock(" not in hints["own"], "its pickle needs it"
