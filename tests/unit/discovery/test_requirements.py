"""Requirements are parsed like packaging does, but faster."""

from __future__ import annotations

import sys
from importlib.metadata import distributions

import pytest
from packaging.requirements import InvalidRequirement, Requirement

from modpack.discovery.distributions import required_names


def by_packaging(lines: list[str]) -> frozenset[str]:
    required = set()
    for line in lines:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            required.add(requirement.name.lower().replace("_", "-").replace(".", "-"))
    return frozenset(required)


@pytest.mark.parametrize(
    "line",
    [
        "numpy",
        "Typing_Extensions>=4; python_version >= '3'",
        "numpy; python_version < '3'",
        "numpy; extra == 'all'",
        'numpy>=1; extra == "all"',
        "numpy; python_version > '3' and extra == 'all'",
        "numpy; extra == 'all' or python_version > '3'",
        "numpy; (extra == 'all') or (python_version > '3')",
        "numpy; extra == ''",
        "numpy; extra != 'all'",
        "numpy; 'all' == extra",
        "numpy; python_version > '3' and (extra == 'a' or extra == 'b')",
        "numpy @ https://example.com/numpy.zip",
        "numpy @ https://example.com/a;extra=='x'",
        "numpy @ https://example.com/a ; extra=='x'",
        "numpy ; extra == 'all' and broken",
        "num py",
        "numpy[all]; sys_platform == 'linux' or sys_platform != 'linux'",
        "tool-or-other; extra == 'x'",
        "A.b_C (>=1.0,<2)",
        "numpy >= 1 , != 1.5.0; python_version<'3.99'",
        "numpy ~= 1.4 ;python_version >= '3.99'",
        "numpy ~= 1",
        "numpy (>=1",
        "numpy >=1)",
        "numpy >=1,",
        "numpy ==1.*; python_version != '3.8'",
        "numpy >=1.*",
        "numpy 1.0",
        "numpy; python_version == '3'",
        "numpy; python_version > '3.2.1'",
        "numpy; python_version ~= '3.1'",
        "numpy; python_version < \"3.99'",
        "numpy; python_version == '3.011'",
        f"numpy; python_version == '{sys.version_info[0]}.{sys.version_info[1]}'",
        f"numpy; python_version <= '{sys.version_info[0]}.{sys.version_info[1]}'",
        f"numpy; python_version > '{sys.version_info[0]}.{sys.version_info[1]}'",
        f"numpy; sys_platform == '{sys.platform}'",
        f"numpy; sys_platform != '{sys.platform}'",
        "numpy; sys_platform > 'a'",
        "numpy; os_name == 'posix'",
        "numpy; os_name == 'nt' and python_version < '4'",
        "numpy; implementation_name != 'cpython'",
        "numpy; implementation_name == 'cpython' ; x",
        "-numpy",
        "numpy-",
        "numpy\n",
    ],
)
def test_required_names_ignores_extras(line: str) -> None:
    assert required_names([line]) == by_packaging([line])


def test_required_names_matches_packaging() -> None:
    for found in distributions():
        lines = found.metadata.get_all("Requires-Dist") or []
        assert required_names(lines) == by_packaging(lines)
