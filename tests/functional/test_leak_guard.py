"""Secrets are found before anything is written, and stop the export unless they are allowed."""

from __future__ import annotations

import importlib
import json

import pytest
import torch

import modpack
from modpack import PackageExporter, PackagingError, PackagingErrorReason
from tests.warm_python import run_python

PASSWORD = "Tr0ub4dor&3"
SOURCE = f"rate = 1\npassword = {PASSWORD!r}\n"
FINGERPRINT = "48486e1514e8"


def problems_of(save, **options):
    """What keeps an exporter from writing, as (subject, place, context)."""
    exporter = PackageExporter(None, **options)
    save(exporter)
    found = [p for p in exporter.plan().problems if p.code == PackagingErrorReason.POSSIBLE_SECRET]

    return [(problem.subject, problem.location, problem.message) for problem in found]


def test_a_secret_in_a_source_stops_the_export_and_leaves_the_old_package(project, tmp_path):
    root = project({"shop.py": SOURCE, "other.py": "token = 'Zq8xVb71LmPo93TtRw'\nimport shop\n"})
    target = tmp_path / "shop.modpack"
    target.write_bytes(b"the old one")
    with pytest.raises(PackagingError) as caught, PackageExporter(target) as exporter:
        exporter.intern("shop")
        exporter.save_module("other")
    told = str(caught.value)
    assert f"{root / 'shop.py'}:2" in told and f"{root / 'other.py'}:1" in told
    assert f"shop#{FINGERPRINT}" in told and "'Tr0u...' (11 characters)" in told
    assert PASSWORD not in told
    assert target.read_bytes() == b"the old one"


def test_a_secret_in_an_attribute_is_told_by_its_path():
    model = torch.nn.Linear(2, 2)
    model.config = {"login": ["ann", {"password": PASSWORD}]}
    model.register_forward_hook(HookWithKey())
    found = problems_of(lambda exporter: exporter.save_model("m", "m.pkl", model))
    assert ("m/m.pkl", "model.config['login'][1]['password']") in [each[:2] for each in found]
    [hook] = [each for each in found if "login" not in each[1]]
    assert "api_key" in hook[1] and "model._forward_hooks" in hook[1]


class HookWithKey:
    def __init__(self):
        self.api_key = "d8e8fca2dc0f" + "896fd7cb4cb0031ba249"

    def __call__(self, module, args, output):
        return None


def test_a_secret_in_a_function_that_travels_by_its_source_is_told_by_its_place():
    def answer():
        password = "Tr0ub4dor&3"
        return password

    [found] = problems_of(lambda exporter: exporter.save_pickle("m", "f.pkl", answer))
    assert found[0] == "m/f.pkl"
    assert found[1] == f"{__file__}:{answer.__code__.co_firstlineno}"


def test_a_key_of_a_dictionary_that_is_a_secret_itself_is_not_shown():
    token = "gh" + "p_" + "Zq8xVb71LmPo93TtRwAa" + "Zq8xVb71LmPo93Tt"
    found = problems_of(lambda e: e.save_pickle("m", "m.pkl", {token: [1]}))
    assert found and token not in str(found)


@pytest.mark.parametrize("text", [SOURCE, "a: 1\npassword: Tr0ub4dor&3\n"])
def test_texts_that_are_saved_are_looked_through(text):
    [found] = problems_of(lambda exporter: exporter.save_text("shop", "conf.yaml", text))
    assert found[:2] == ("shop/conf.yaml", "shop/conf.yaml:2")


def test_a_file_that_goes_along_is_looked_through(project):
    root = project(
        {
            "shop/__init__.py": "from pathlib import Path\n"
            "words = (Path(__file__).parent / 'words.txt').read_text()\n",
            "shop/words.txt": "one\npassword = Tr0ub4dor&3\n",
        }
    )
    [found] = problems_of(lambda exporter: exporter.save_module("shop"))
    assert found[:2] == ("shop/words.txt", f"{root / 'shop' / 'words.txt'}:2")


def test_what_a_distribution_publishes_of_itself_is_looked_through_for_shapes_only(installed):
    badge = "![build](https://ci.example/badge?token=af199cd2deca9e70e53776f9ded96284b10687e9)\n"
    token = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
    files = {"shop/__init__.py": "x = 1\n"}
    installed("shop", files, metadata={"LICENSE": badge, "AUTHORS": f"{token}\n"})

    def save(exporter):
        exporter.use_preset("hermetic")
        exporter.save_module("shop")

    assert [subject for subject, _, _ in problems_of(save)] == ["shop-1.0.dist-info/AUTHORS"]


def test_an_env_file_does_not_go_along_under_any_name_of_its_kind():
    def save(exporter):
        exporter.save_text("shop", "prod.env", f"DB_PASSWORD={PASSWORD}\n")
        exporter.save_text("shop", ".env.example", "DB_PASSWORD=...\n")

    found = problems_of(save)
    assert {each[0] for each in found} == {"shop/prod.env"}
    assert "a .env file" in found[0][2]


def test_what_a_nearby_env_file_keeps_is_found_wherever_it_got_to(project):
    root = project({"shop/__init__.py": "greeting = 'marzipan-9-moon'\n", "pyproject.toml": ""})
    (root / ".env").write_text("GREETING_SECRET=marzipan-9-moon\n")

    def save(exporter):
        exporter.save_module("shop")
        exporter.save_pickle("shop", "state.pkl", ["marzipan-9-moon"])

    found = problems_of(save)
    assert {each[1] for each in found} == {f"{root / 'shop' / '__init__.py'}:1", "obj[0]"}
    assert all(f"the value of GREETING_SECRET in {root / '.env'}" in each[2] for each in found)


@pytest.mark.parametrize(
    "allowed", ["shop", "sho*", "**", f"shop#{FINGERPRINT}", ["no", f"**#{FINGERPRINT}"]]
)
def test_what_is_allowed_goes_along(allowed, tmp_path):
    with PackageExporter(tmp_path / "shop.modpack", allow_secrets_in=allowed) as exporter:
        exporter.save_source_string("shop", SOURCE)
    assert modpack.PackageImporter(tmp_path / "shop.modpack").get_source("shop") == SOURCE


@pytest.mark.parametrize("allowed", ["other", "shop#0123456789ab", "shop/*", ()])
def test_what_is_not_meant_by_an_allowance_stays_a_problem(allowed):
    def save(exporter):
        exporter.save_source_string("shop", SOURCE)

    assert len(problems_of(save, allow_secrets_in=allowed)) == 1


def test_records_are_allowed_by_patterns_with_a_slash():
    def save(exporter):
        exporter.save_text("shop.data", "conf.ini", "password = Tr0ub4dor&3\n")

    assert problems_of(save) != []
    assert problems_of(save, allow_secrets_in="shop*.*.*") != []
    assert problems_of(save, allow_secrets_in="shop/**") == []


def test_a_pattern_of_modules_allows_no_record():
    def save(exporter):
        exporter.save_text("shop", "credentials", "password = Tr0ub4dor&3\n")

    assert problems_of(save, allow_secrets_in="shop*") != []
    assert problems_of(save, allow_secrets_in="shop/*") == []


def test_a_comment_in_the_line_allows_it():
    text = f"password = {PASSWORD!r}  # modpack: not a secret\n"
    assert problems_of(lambda exporter: exporter.save_source_string("shop", text)) == []


def test_a_script_modules_code_is_looked_through():
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
def test_an_allowance_that_is_none_is_refused(allowed, error):
    with pytest.raises(error, match="allow_secrets_in"):
        PackageExporter(None, allow_secrets_in=allowed)


def test_save_takes_allowances_as_well(tmp_path):
    state = {"password": PASSWORD}
    with pytest.raises(PackagingError, match=r"obj\['password'\]|model\['password'\]"):
        modpack.save(state, tmp_path / "a.modpack")
    modpack.save(state, tmp_path / "a.modpack", allow_secrets_in="__model__/model.pkl")
    assert modpack.load(tmp_path / "a.modpack") == state


def command(folder, *arguments):
    return run_python("-m", "modpack", *arguments, folder=folder)


def test_commands_tell_secrets_as_problems_and_take_allowances(tmp_path):
    (tmp_path / "shop.py").write_text(f"{SOURCE}class Net:\n    pass\n\n\nnet = Net()\n")
    done = command(tmp_path, "export", "shop:net", "-o", "a.modpack")
    assert done.returncode == 1 and "shop.py:2" in done.stdout
    assert PASSWORD not in done.stdout + done.stderr
    assert not (tmp_path / "a.modpack").exists()
    audit = command(tmp_path, "audit", "shop:net", "--json")
    assert audit.returncode == 1
    [problem] = json.loads(audit.stdout)["problems"]
    assert (problem["reason"], problem["subject"]) == ("secret", "shop")
    allow = ["--allow-secrets-in", f"shop#{FINGERPRINT}"]
    assert command(tmp_path, "audit", "shop:net", *allow).returncode == 0
    (tmp_path / "pyproject.toml").write_text('[tool.modpack]\nallow_secrets = ["shop"]\n')
    done = command(tmp_path, "export", "shop:net", "-o", "a.modpack")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("text", ["1", "[1]", '"a#b"', '"a..b"'])
def test_a_project_files_mistakes_are_told(tmp_path, text):
    (tmp_path / "pyproject.toml").write_text(f"[tool.modpack]\nallow_secrets = {text}\n")
    done = command(tmp_path, "export", "shop:net", "-o", "a.modpack")
    assert done.returncode == 2 and "tool.modpack.allow_secrets_in" in done.stderr


def test_a_mistake_in_the_option_is_told(tmp_path):
    done = command(tmp_path, "export", "shop:net", "-o", "a", "--allow-secrets-in", "a#b")
    assert done.returncode == 2 and "12 hex digits" in done.stderr


def test_a_source_that_was_seen_before_is_refused_again(project):
    project({"shop.py": SOURCE})

    def save(exporter):
        exporter.intern("shop")
        exporter.save_source_string("main_shop", "import shop")

    first = problems_of(save)
    assert [subject for subject, _, _ in first] == ["shop"]
    assert problems_of(save) == first


def test_a_source_that_was_clean_is_not_once_an_env_file_says_so(project):
    root = project({"shop.py": "name = 'kq82-Zs0v-T1xx'\n", "pyproject.toml": ""})

    def save(exporter):
        exporter.intern("shop")
        exporter.save_source_string("main_shop", "import shop")

    assert problems_of(save) == []
    (root / ".env").write_text("SHOP_PASSWORD=kq82-Zs0v-T1xx\n")
    assert [subject for subject, _, _ in problems_of(save)] == ["shop"]


def test_a_file_that_was_clean_is_not_once_an_env_file_says_so(project):
    source = "from pathlib import Path\nTEXT = (Path(__file__).parent / 'kept.txt').read_text()\n"
    files = {"shop/__init__.py": source, "shop/kept.txt": "kq82-Zs0v-T1xx", "pyproject.toml": ""}
    root = project(files)

    def save(exporter):
        exporter.save_module("shop")

    assert problems_of(save) == problems_of(save) == []
    (root / ".env").write_text("SHOP_PASSWORD=kq82-Zs0v-T1xx\n")
    assert [subject for subject, _, _ in problems_of(save)] == ["shop/kept.txt"]
    (root / ".env").unlink()
    (root / "shop" / "kept.txt").write_text("password = 'Tr0ub4dor&3'")
    assert [subject for subject, _, _ in problems_of(save)] == ["shop/kept.txt"]


TOKEN = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
PUBLISHED = {
    "shop/__init__.py": f"import shop.till\n{SOURCE}",
    "shop/till.py": "token = 'Zq8xVb71LmPo93TtRw'\n",
    "shop/examples.json": '{"Password": "Tr0ub4dor&3"}',
}


def save_shop(exporter):
    exporter.use_preset("hermetic")
    exporter.save_source_string("net", "import shop")


def test_what_an_index_publishes_is_no_secret_by_its_name(installed):
    installed("shop", PUBLISHED)
    assert problems_of(save_shop) == []


def test_what_an_index_publishes_is_looked_through_for_tokens_and_keys(installed):
    installed("shop", {**PUBLISHED, "shop/till.py": f"password = 'x {TOKEN}'\n"})
    [(subject, _, context)] = problems_of(save_shop)
    assert subject == "shop.till" and "a GitHub token" in context


def test_what_a_published_file_keeps_of_an_env_file_is_found(installed, project):
    root = project({"pyproject.toml": ""})
    (root / ".env").write_text(f"SHOP_PASSWORD={PASSWORD}\n")
    installed("shop", PUBLISHED)
    assert {each[0] for each in problems_of(save_shop)} == {"shop", "shop/examples.json"}


def test_an_installed_file_that_was_edited_is_no_published_one(installed):
    site = installed("shop", PUBLISHED)
    for name in ("till.py", "examples.json"):
        file = site / "shop" / name
        file.write_text(f"{file.read_text()}\n")
    assert {each[0] for each in problems_of(save_shop)} == {"shop.till", "shop/examples.json"}


@pytest.mark.parametrize("url", ["file:///home/ann/shop", "https://ann.example/shop-1.0.whl"])
def test_what_was_not_installed_from_an_index_is_not_published(installed, url):
    origin = json.dumps({"url": url, "dir_info": {}})
    installed("shop", PUBLISHED, metadata={"direct_url.json": origin})
    found = {each[0] for each in problems_of(save_shop)}
    assert found == {"shop", "shop.till", "shop/examples.json"}


def test_what_a_package_holds_of_a_published_distribution_stays_published(installed, tmp_path):
    installed("shop", PUBLISHED)
    with PackageExporter(tmp_path / "a.modpack") as exporter:
        save_shop(exporter)
    old = modpack.PackageImporter(tmp_path / "a.modpack")
    assert problems_of(save_shop, importer=[old, modpack.sys_importer]) == []


def test_a_secret_tells_why_its_file_is_in_the_package_and_how_to_leave_it_out(
    installed, project, tmp_path
):
    origin = json.dumps({"url": "file:///home/ann/shop", "dir_info": {}})
    installed("shop", PUBLISHED, metadata={"direct_url.json": origin})
    project({"own.py": f"import shop.till\n{SOURCE}class Net:\n    pass\n"})

    def save(exporter):
        exporter.use_preset("hermetic")
        exporter.save_pickle("m", "m.pkl", importlib.import_module("own").Net)

    with pytest.raises(PackagingError) as caught, PackageExporter(tmp_path / "a") as exporter:
        save(exporter)
    assert "<m/m.pkl> -> own -> shop.till -> shop\n" in str(caught.value)
    assert "<m/m.pkl> -> own -> shop.till\n" in str(caught.value)
    told = {problem.subject: problem.message for problem in caught.value.problems}
    assert "mock('shop.**')" in told["shop.till"]
    assert "mock('shop.**')" in told["shop/examples.json"]
    assert "mock(" not in told["own"], "its pickle needs it"
