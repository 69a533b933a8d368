"""The export environment, as values and as JSON."""

import pytest

from modpack.core.environment import (
    EnvironmentComparison,
    EnvironmentRow,
    RecordedDistribution,
    RecordedEnvironment,
    RowStatus,
    environment_from_json,
    environment_to_json,
)

NUMPY = RecordedDistribution("numpy", "2.1.0", license="BSD-3-Clause", hashes={"sha256": "ab"})
STORAGE = RecordedDistribution("Cloud.Storage", "1.0", requires=("numpy",))
MADE = RecordedEnvironment(
    "3.11.7",
    "CPython",
    "linux",
    "x86_64",
    "2.13.0+cpu",
    {"numpy": "numpy", "cloud.storage": "cloud-storage"},
    {"numpy": NUMPY, "cloud-storage": STORAGE},
    has_distribution_metadata=True,
)


def test_environment_round_trips():
    assert environment_from_json(environment_to_json(MADE)) == MADE


def test_settings_of_torch_are_read():
    settings = {"deterministic algorithms": "True, warn_only=True", "default device": "cuda:0"}
    settings["autocast"] = "'cpu', torch.bfloat16"
    record = {**environment_to_json(MADE), "torch_settings": settings}
    assert environment_from_json(record).torch_settings == settings


@pytest.mark.parametrize(
    "change",
    [
        {"providers": {"x": 3}},
        {"torch_settings": {"default dtype": "torch.float64); run("}},
        {"torch_settings": {"default device": "cpu\x1b[2J"}},
        {"providers": None},
        {"providers": {"a" + ".a" * 64: "numpy"}},
        {"installed": []},
        {"installed": {"x": {}}},
        {"installed": {"x": {**environment_to_json(MADE)["installed"]["numpy"], "requires": 3}}},
        {"installed": {"x": {**environment_to_json(MADE)["installed"]["numpy"], "hashes": []}}},
        {"installed": {"x": {**environment_to_json(MADE)["installed"]["numpy"], "url": 3}}},
        {"torch": 2},
        {"native": "linux"},
    ],
)
def test_environment_from_json_rejects_invalid_values(change):
    with pytest.raises((KeyError, TypeError, ValueError)):
        environment_from_json({**environment_to_json(MADE), **change})


def test_provider_of_namespace_package_modules():
    assert MADE.provider_of("cloud.storage.disk") == STORAGE
    assert MADE.provider_of("cloud.other") is None
    # A shared folder: any distribution with a module in it is right.
    assert MADE.provider_of("cloud") == STORAGE
    assert MADE.group_by_distribution(["numpy", "cloud.storage", "numpy.linalg", "unknown"]) == {
        "cloud-storage": (STORAGE, ("cloud.storage",)),
        "numpy": (NUMPY, ("numpy", "numpy.linalg")),
    }


def test_provider_of_too_deep_module_is_none():
    assert MADE.provider_of("numpy" + ".a" * 63) == NUMPY
    assert MADE.provider_of("numpy" + ".a" * 5_000_000) is None


def test_group_by_distribution_handles_many_modules():
    modules = [f"numpy.m{n:06}" for n in range(500_000)]
    ((_, found),) = MADE.group_by_distribution(modules).values()
    assert list(found) == modules


def test_provider_of_ignores_common_prefix():
    names = ("cloud-x", "cloud0", "cloud_a.b", "clouds", "cloud.z.a")
    of = {name: RecordedDistribution(name, "1") for name in names}
    made = RecordedEnvironment(providers={name: name for name in reversed(names)}, distributions=of)
    assert made.provider_of("cloud") == of["cloud.z.a"]
    assert made.provider_of("cloud.z") == of["cloud.z.a"]
    assert [made.provider_of(name) for name in ("clou", "cloud.y", "cloud.zz", "zzz")] == [None] * 4
    assert RecordedEnvironment().provider_of("cloud") is None


def test_requirement_omits_local_label():
    assert RecordedDistribution("torch", "2.13.0+cpu").requirement == "torch==2.13.0"


def test_requirement_has_repository_url():
    url = "git+https://host.example/me/tool@0a1b2c"
    assert RecordedDistribution("tool", "1.0", url=url).requirement == f"tool @ {url}"


def test_requirement_of_editable_install_is_none():
    assert RecordedDistribution("mine", "1.0", editable=True).requirement is None


@pytest.mark.parametrize(
    ("name", "version", "url"),
    [
        ("a'; rm -rf ~; '", "1.0", None),
        ("-r", "1.0", None),
        ("a", "1.0\n--index-url https://evil.example", None),
        ("a\n-e .", "1.0", None),
        ("a", "1.0 # x", None),
        ("a", "$(reboot)", "git+https://host.example/x'; reboot; '"),
        ("", "", None),
    ],
)
def test_requirement_rejects_shell_characters(name, version, url):
    assert RecordedDistribution(name, version, url=url).requirement is None


def row(name, status, requirement=None):
    return EnvironmentRow(name, "1.0", None, status, (), requirement)


def test_comparison_has_install_command():
    same, similar = row("same", RowStatus.SAME), row("similar", RowStatus.SIMILAR, "similar==1.0")
    other, gone = (
        row("other", RowStatus.DIFFERENT, "o==1.0"),
        row("gone", RowStatus.MISSING, "g==1"),
    )
    python = row("Python", RowStatus.DIFFERENT)
    comparison = EnvironmentComparison((python, same, similar, other, gone))
    assert comparison.differences == (python, other, gone)
    assert comparison.deviations == (python, similar, other, gone)
    assert comparison.missing == (gone,)
    assert comparison.install_command == "pip install 'o==1.0' 'g==1'"
    assert EnvironmentComparison((python, same)).install_command is None


@pytest.mark.parametrize(
    ("url", "is_given"),
    [
        ("https://example.org/a/b-1.0.whl#sha256=0f", True),
        ("git+https://example.org/a/b.git@1.0#egg=b", True),
        ("git+ssh://git@example.org:22/a/b.git", True),
        ("https://example.org", True),
        ("git+ssh://-oProxyCommand=touch%20x/y", False),
        ("git+ssh://git@-oProxyCommand=touch/y", False),
        ("https://me:password@example.org/b.whl", False),
        ("https://example.org/b.whl&touch", False),
        ("file:///etc/passwd", False),
    ],
)
def test_requirement_accepts_only_safe_urls(url, is_given):
    found = RecordedDistribution("b", "1.0", url=url)
    assert found.requirement == (f"b @ {url}" if is_given else "b==1.0")
