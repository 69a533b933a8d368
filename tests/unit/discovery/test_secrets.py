"""Detection of secrets."""

from __future__ import annotations

import base64
import pickle
import random
import string
import time

import pytest

from modpack.discovery.secrets import (
    env_file_secrets,
    env_secrets_in,
    find_secrets,
    folders_up_to_project,
)

DRAWN = random.Random(4)


def drawn(count, alphabet=string.ascii_letters + string.digits):
    return "".join(DRAWN.choice(alphabet) for _ in range(count))


KEY_LINES = "\n".join(drawn(64) for _ in range(6))
UPPER = string.ascii_uppercase + "234567"

# Assembled at run time, so that this file contains no token.
TOKENS = {
    "an AWS access key": "AKIA" + drawn(16, UPPER),
    "a GitHub token": "gh" + "p_" + drawn(36),
    "a GitLab token": "glpat" + "-" + drawn(20),
    "a Slack token": "xox" + "b-938475610283-8471029384756-" + drawn(24),
    "a Slack webhook": "hooks.slack"
    + ".com/services/T0"
    + drawn(8, UPPER)
    + "/B0"
    + drawn(8, UPPER)
    + "/"
    + drawn(24),
    "a Google API key": "AI" + "za" + drawn(35),
    "a Google access token": "ya" + "29." + drawn(60),
    "a Google client secret": "GOC" + "SPX-" + drawn(28),
    "a Hugging Face token": "h" + "f_" + drawn(34, string.ascii_letters),
    "an API key (sk-)": "s" + "k-proj-" + drawn(48),
    "a Stripe key": "sk" + "_live_" + drawn(24),
    "an npm token": "np" + "m_" + drawn(36),
    "a PyPI token": "py" + "pi-AgE" + drawn(120),
    "a JSON web token": "ey" + "J" + drawn(30) + ".ey" + "J" + drawn(60) + "." + drawn(43),
    "a SendGrid key": "S" + "G." + drawn(22) + "." + drawn(43),
    "a DigitalOcean token": "dop" + "_v1_" + drawn(64, "0123456789abcdef"),
    "a Databricks token": "da" + "pi" + drawn(32, "0123456789abcdef"),
}


def found(text, known=None, *, is_pickle=False):
    data = text if isinstance(text, bytes) else text.encode()
    secrets = find_secrets(data, known, is_pickle=is_pickle)
    return [(secret.line, secret.description) for secret in secrets]


@pytest.mark.parametrize("what", TOKENS)
def test_find_secrets_detects_token_formats(what):
    assert found(f"x = 1\nlogin({TOKENS[what]!r})\n") == [(2, what)]


@pytest.mark.parametrize("what", TOKENS)
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_find_secrets_detects_token_between_opcodes(what, protocol):
    value = TOKENS[what]
    data = pickle.dumps({"a": ["x" * 200, value, value + " "], "b": value}, protocol)
    [first, *_] = find_secrets(data, is_pickle=True)
    assert (first.description, first.value, first.line) == (what, value.encode(), None)
    assert data[first.position :].startswith(value.encode())


@pytest.mark.parametrize("decoys", [0, 31, 32, 33, 500])
def test_find_secrets_detects_token_after_false_opcodes(decoys):
    value = TOKENS["a GitHub token"]
    seeming = [f"{value[:4]}{number}" for number in range(decoys)]
    numbers = [number / 7 for number in range(30_000)]
    for state in ([value, seeming, numbers], [seeming, numbers, value], [numbers, seeming, value]):
        data = pickle.dumps(state, 3)
        [secret] = find_secrets(data, is_pickle=True)
        assert data[secret.position :].startswith(value.encode())


@pytest.mark.parametrize(
    "label", ["RSA PRIVATE", "PRIVATE", "EC PRIVATE", "OPENSSH PRIVATE", "ENCRYPTED PRIVATE"]
)
def test_find_secrets_detects_private_keys(label):
    key = f"-----BEGIN {label} KEY-----\n{KEY_LINES}\n-----END {label} KEY-----\n"
    in_json = key.replace("\n", "\\n")
    assert found(f'KEY = """{key}"""') == [(1, "a private key")]
    assert found('{"private": "' + in_json + '"}') == [(1, "a private key")]
    assert found(pickle.dumps([key]), is_pickle=True) == [(None, "a private key")]


def test_find_secrets_detects_pgp_key_with_headers():
    key = f"-----BEGIN PGP PRIVATE KEY BLOCK-----\nVersion: 2\n\n{KEY_LINES}\n"
    assert found(key) == [(1, "a private key")]


def test_find_secrets_searches_sources_in_pickles():
    source = f"def f():\n    login({TOKENS['a GitHub token']!r})\n"
    assert found(pickle.dumps((source, 1)), is_pickle=True) == [(None, "a GitHub token")]


def test_find_secrets_searches_utf16():
    text = f"\nlogin({TOKENS['a GitHub token']!r})\n"
    assert found(text.encode("utf-16")) == [(2, "a GitHub token")]


@pytest.mark.parametrize(
    "text",
    [
        "AWS = 'AKIAIOSFODNN7EXAMPLE'",
        "token = 'ghp_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx'",
        "password = 'Tr0ub4dor&3'",
        "api_key = 'd8e8fca2dc0f896fd7cb4cb0031ba249'",
        "url = 'postgres://ann:Tr0ub4Dor3x@db.lan/shop'",
        "header = 'Authorization: Bearer Zq8xVb71LmPo93TtRw'",
        "-----BEGIN PUBLIC KEY-----\n" + KEY_LINES,
        "-----BEGIN PRIVATE KEY-----\n...\n-----END PRIVATE KEY-----",
        "match = re.compile('-----BEGIN PRIVATE KEY-----')",
        "class_ = 'sk-estimator-doc-link-fitted-and-ready'",
        "sha = 'd8e8fca2dc0f896fd7cb4cb0031ba249'",
    ],
)
def test_find_secrets_ignores_examples_and_digests(text):
    assert found(text) == []
    assert found(pickle.dumps([text]), is_pickle=True) == []


def test_find_secrets_skips_line_with_comment():
    token = TOKENS["a GitHub token"]
    text = f"x = {token!r}  # modpack: not a secret\nx = {token!r}\n"
    assert [line for line, _ in found(text)] == [2]


def test_find_secrets_detects_known_values():
    known = {b"plain words": "the value of A in .env"}
    assert found("x = 'plain words'", known=known) == [(1, "the value of A in .env")]


def test_excerpt_shows_at_most_four_characters():
    [secret] = find_secrets(b"x = 'Tr0ub4dor&3'", {b"Tr0ub4dor&3": "a password"})
    assert secret.excerpt == "'Tr0u...' (11 characters)"
    assert len(secret.fingerprint) == 12


def test_find_secrets_detects_secret_at_chunk_border_once():
    token = TOKENS["a GitHub token"].encode()
    for before in (4 << 20) - 20, (4 << 20), (4 << 20) + 100:
        data = b"\n" * before + token + b"\n" * (5 << 20)
        assert [s.position for s in find_secrets(data)] == [before]


@pytest.mark.parametrize("overlap", [32 << 10, 64 << 10])
def test_find_secrets_reports_whole_token_at_the_end_of_a_chunk(overlap):
    token = TOKENS["a JSON web token"].encode()
    before = (4 << 20) + overlap - len(token) + 10
    [secret] = find_secrets(b"\n" * before + token + b"\n" * (5 << 20))
    assert secret.value == token


def test_find_secrets_ignores_token_within_a_word_at_chunk_border():
    token = TOKENS["an API key (sk-)"].encode()
    assert find_secrets(b"\n" * ((4 << 20) - 2) + b"ta" + token) == ()


def test_find_secrets_searches_binary_data():
    token = TOKENS["a GitHub token"].encode()
    data = DRAWN.randbytes(1 << 20) + b"\0" + token + b"\0" + DRAWN.randbytes(1 << 20)
    [secret] = find_secrets(data)
    assert secret.value == token and secret.line is None


@pytest.mark.parametrize(
    "text",
    [
        b"-----BEGIN PRIVATE KEY-----" * 20_000,
        b"eyJaaaaaaaa." * 30_000,
        b"X" * 300_000 + b"hf_",
        b"LS0tLS1CRUdJTiBQUklWQVRFIEtFWa" * 10_000,
    ],
)
@pytest.mark.parametrize("is_pickle", [False, True])
def test_find_secrets_takes_linear_time(text, is_pickle):
    before = time.process_time()
    find_secrets(text, is_pickle=is_pickle)
    assert time.process_time() - before < 30  # takes tenths of a second; without limits, minutes


def test_env_file_secrets_yields_secret_values(tmp_path):
    text = (
        "# database\nDEBUG=1\nSTAGE=production\nexport DB_PASSWORD='Tr0ub4dor&3'\n"
        "KEY_FILE=/srv/data/v1/words2\nDSN=postgres://ann:w0rdOfAnn@db/x\nAPI_KEY=your_key_here1\n"
    )
    assert dict(env_file_secrets(text.encode())) == {
        "DB_PASSWORD": b"Tr0ub4dor&3",
        "DSN": b"w0rdOfAnn",
    }
    (tmp_path / ".env.local").write_text(text)
    (tmp_path / ".env.example").write_text("OTHER_PASSWORD=Tr0ub4dor&9\n")
    known = env_secrets_in(tmp_path)
    assert set(known) == {b"Tr0ub4dor&3", b"w0rdOfAnn"}
    assert known[b"Tr0ub4dor&3"] == f"the value of DB_PASSWORD in {tmp_path / '.env.local'}"


def test_folders_up_to_project_ends_at_project(tmp_path):
    inner = tmp_path / "src" / "shop"
    inner.mkdir(parents=True)
    assert folders_up_to_project(str(inner)) == [str(inner)]
    (tmp_path / "pyproject.toml").touch()
    assert folders_up_to_project(str(inner)) == [str(inner), str(inner.parent), str(tmp_path)]


def test_folders_up_to_project_of_relative_ends_at_current(tmp_path, monkeypatch):
    inner = tmp_path / "src" / "shop"
    inner.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert folders_up_to_project("src/shop", lambda folder: folder == ".") == [
        "src/shop",
        "src",
        ".",
    ]
    assert folders_up_to_project(".") == ["."]


def test_folders_up_to_project_limits_parents():
    deep = "/" + "/".join(map(str, range(20)))
    asked = []
    assert folders_up_to_project(deep, lambda folder: asked.append(folder) or folder == "/") == [
        deep
    ]
    assert len(asked) == 12
    assert folders_up_to_project("/a/b", lambda folder: folder == "/") == ["/a/b", "/a", "/"]


HEX = "0123456789abcdef"
MORE_TOKENS = {
    "an API key": "gs" + "k_" + drawn(52),
    "a Docker token": "dckr" + "_pat_" + drawn(27),
    "a Vault token": "hv" + "s." + drawn(95),
    "a Telegram token": f"{drawn(9, string.digits[1:])}:A" + "A" + drawn(33),
    "an age key": "AGE-SECRET" + "-KEY-1" + drawn(58, UPPER),
    "an Azure access key": "SharedAccess" + f"Key={base64.b64encode(DRAWN.randbytes(32)).decode()}",
    "an Azure client secret": f"{drawn(3)}8" + "Q~" + drawn(34),
    "a private key without PEM headers": "MIIEvw" + "IBADANBgkqhkiG9w0BAQEFAASC" + drawn(900),
}


@pytest.mark.parametrize("what", MORE_TOKENS)
def test_find_secrets_detects_more_token_formats(what):
    assert found(f"x = 1\nx = {MORE_TOKENS[what]}\n") == [(2, what)]
    assert what in [each for _, each in found(pickle.dumps([MORE_TOKENS[what]]), is_pickle=True)]


@pytest.mark.parametrize("label", ["RSA PRIVATE", "PRIVATE", "EC PRIVATE", "OPENSSH PRIVATE"])
def test_find_secrets_ignores_base64_certificate(label):
    def encoded(label):
        text = f"-----BEGIN {label}-----\n{KEY_LINES}\n-----END {label}-----\n"
        return f"client-key-data: {base64.b64encode(text.encode()).decode()}\n"

    assert found(encoded(f"{label} KEY")) == [(1, "a private key in base64")]
    assert found(encoded("CERTIFICATE")) == []


def test_find_secrets_detects_long_token_with_placeholder_word():
    token = "ey" + "J" + drawn(40) + ".ey" + "J" + drawn(100) + "xxx" + drawn(60) + "." + drawn(43)
    assert found(f"x = {token!r}") == [(1, "a JSON web token")]


def test_excerpt_shows_at_most_a_third():
    [secret] = find_secrets(b"x = 'q7w!e8rt'", {b"q7w!e8rt": "a password"})
    assert secret.excerpt == "'q7w...' (8 characters)"
    assert "q7w!" not in repr(secret)


@pytest.mark.parametrize(
    "line",
    [
        "BUCKET=Zq8xVb71LmPo93TtRw",
        "MODEL_KEY=shop-models-2024-prod",
        "TOKENIZER=some-llm-3-8b-instruct",
        "KEY_URL=https://keys.example.org/v1",
        "PASSWORD_FILE=./run/secrets/db1",
        "PASSWORD=postgres",
        "TOKEN_LIMIT=10000000",
    ],
)
def test_env_file_secrets_ignores_other_names_and_labels(line):
    assert list(env_file_secrets(line.encode())) == []
