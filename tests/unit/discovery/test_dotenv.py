"""Detection of ``.env`` files."""

from __future__ import annotations

from pathlib import Path

import pytest

from modpack.discovery.secrets import env_secrets_in


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        (".env", True),
        (".env.production", True),
        ("shop.env", True),
        ("shop.env.local", True),
        (".env.example", False),
        ("env", False),
        ("env.local", False),
        (".envrc", False),
        ("shop.environment", False),
    ],
)
def test_env_secrets_reads_files_by_name(tmp_path: Path, name: str, counts: bool) -> None:
    (tmp_path / name).write_text("DB_PASSWORD='Tr0ub4dor&3xyz'\n")
    assert bool(env_secrets_in(tmp_path)) == counts


def test_env_secrets_ignores_folders_and_missing_folders(tmp_path: Path) -> None:
    (tmp_path / ".env").mkdir()
    assert env_secrets_in(tmp_path) == env_secrets_in(tmp_path / "missing") == {}
