"""Detection of secrets."""

from __future__ import annotations

import base64
import pickle
import random
import string
import time

import pytest

from modpack.discovery.secrets import (
    TextKind,
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


def found(text, kind=TextKind.SOURCE, known=None):
    data = text if isinstance(text, bytes) else text.encode()
    return [(secret.line, secret.description) for secret in find_secrets(data, kind, known)]


@pytest.mark.parametrize("what", TOKENS)
def test_find_secrets_detects_token_formats(what):
    assert found(f"x = 1\nlogin({TOKENS[what]!r})\n") == [(2, what)]


@pytest.mark.parametrize("what", TOKENS)
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_find_secrets_detects_token_between_opcodes(what, protocol):
    value = TOKENS[what]
    data = pickle.dumps({"a": ["x" * 200, value, value + " "], "b": value}, protocol)
    [first, *_] = find_secrets(data, TextKind.PICKLE)
    assert (first.description, first.value, first.line) == (what, value.encode(), None)
    assert data[first.position :].startswith(value.encode())


@pytest.mark.parametrize("decoys", [0, 31, 32, 33, 500])
def test_find_secrets_detects_token_after_false_opcodes(decoys):
    value = TOKENS["a GitHub token"]
    seeming = [f"{value[:4]}{number}" for number in range(decoys)]
    numbers = [number / 7 for number in range(30_000)]
    for state in ([value, seeming, numbers], [seeming, numbers, value], [numbers, seeming, value]):
        data = pickle.dumps(state, 3)
        [secret] = find_secrets(data, TextKind.PICKLE)
        assert data[secret.position :].startswith(value.encode())


@pytest.mark.parametrize(
    "label", ["RSA PRIVATE", "PRIVATE", "EC PRIVATE", "OPENSSH PRIVATE", "ENCRYPTED PRIVATE"]
)
def test_find_secrets_detects_private_keys(label):
    key = f"-----BEGIN {label} KEY-----\n{KEY_LINES}\n-----END {label} KEY-----\n"
    in_json = key.replace("\n", "\\n")
    assert found(f'KEY = """{key}"""') == [(1, "a private key")]
    assert found('{"private": "' + in_json + '"}', TextKind.DATA) == [(1, "a private key")]
    assert found(pickle.dumps([key]), TextKind.PICKLE) == [(None, "a private key")]


def test_find_secrets_detects_pgp_key_with_headers():
    key = f"-----BEGIN PGP PRIVATE KEY BLOCK-----\nVersion: 2\n\n{KEY_LINES}\n"
    assert found(key, TextKind.DATA) == [(1, "a private key")]


@pytest.mark.parametrize(
    "text",
    [
        "DB_PASSWORD = 'Tr0ub4dor&3'",
        "password: str = 'Tr0ub4dor&3'",
        "connect(password='Tr0ub4dor&3')",
        '{"password": "Tr0ub4dor&3"}',
        "os.environ['DB_PASSWORD'] = 'Tr0ub4dor&3'",
        "os.environ.setdefault('DB_PASSWORD', 'Tr0ub4dor&3')",
        "dbPassword = 'Tr0ub4dor&3'",
        "api_key = 'd8e8fca2dc0f896fd7cb4cb0031ba249'",
        "CLIENT_SECRET = b'Zq8xVb71LmPo93TtRw'",
        "auth_token = 'Zq8xVb71LmPo93TtRw'",
        "secret_key='Zq8xVb71LmPo93TtRw'",
        "url = 'postgres://ann:Tr0ub4Dor3x@db.lan/shop'",
    ],
)
def test_find_secrets_detects_values_of_secret_names(text):
    assert [line for line, _ in found(f"\n\n{text}\n")] == [3]


@pytest.mark.parametrize(
    "text",
    [
        "DB_PASSWORD=Tr0ub4dor&3",
        "db:\n  password: Tr0ub4dor&3",
        "export API_KEY=Zq8xVb71LmPo93TtRw",
    ],
)
def test_find_secrets_detects_unquoted_values_in_data(text):
    ((_, kind),) = found(f"a: b\n{text}\n", TextKind.DATA)
    assert kind == "a value with a secret name"


def test_find_secrets_detects_netrc_password():
    text = "machine host.lan\n  login ann\n  password Tr0ub4dor&3\n"
    assert found(text, TextKind.DATA) == [(3, "a password in a netrc file")]


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_find_secrets_detects_named_values_in_pickles(protocol):
    state = {"rate": 0.1, "api_key": "d8e8fca2dc0f896fd7cb4cb0031ba249"}
    [secret] = find_secrets(pickle.dumps(state, protocol), TextKind.PICKLE)
    assert secret.value == b"d8e8fca2dc0f896fd7cb4cb0031ba249"


def test_find_secrets_searches_sources_in_pickles():
    source = "def f():\n    password = 'Tr0ub4dor&3'\n"
    secrets = found(pickle.dumps((source, 1)), TextKind.PICKLE)
    assert secrets == [(None, "a value with a secret name")]


@pytest.mark.parametrize(
    "text",
    [
        "AWS = 'AKIAIOSFODNN7EXAMPLE'",
        "token = 'ghp_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx'",
        "password = 'YOUR_PASSWORD_1'",
        "password = os.environ['DB_PASSWORD1']",
        "password = getpass('password1: ')",
        "password = f'{name}1'",
        "password = '%s1word' % x",
        "cls_token = '<|endoftext|>1'",
        "token = 'model.layers.12.attention'",
        "secret_name = 'prod/database/1'",
        "key = 'encoder_layer_3'",
        "tokenizer_file = 'a1b2c3d4e5f6a7b8c9d0.json'",
        "api_key = 'my-very-own-key-name'",
        "token_id = '0f8fad5b-d9cb-469f-a165-70867728950e'",
        "auth_token = '0f8fad5b-d9cb-469f-a165-70867728950e'",
        "types = {'Vendor::Service::ApiKey': '48205d4ffd7feba3'}",
        "-----BEGIN PUBLIC KEY-----\n" + KEY_LINES,
        "-----BEGIN PRIVATE KEY-----\n...\n-----END PRIVATE KEY-----",
        "match = re.compile('-----BEGIN PRIVATE KEY-----')",
        "class_ = 'sk-estimator-doc-link-fitted-and-ready'",
        "url = 'https://user:password@host/'",
        "sha = 'd8e8fca2dc0f896fd7cb4cb0031ba249'",
        "token = r'[-!#$%&*+.^_`|~0-9a-zA-Z]+'",
        "password = r'^[A-Z][0-9]{2}_[a-z]+$'",
        "limit_key = 'StreamDescription.Shards[-1].ShardId'",
    ],
)
def test_find_secrets_ignores_examples_and_digests(text):
    assert found(text) == []
    assert found(pickle.dumps([text]), TextKind.PICKLE) == []


@pytest.mark.parametrize(
    "text",
    [
        "password = 'Tr0ub4dor&3'",
        "url = 'postgres://ann:Tr0ub4Dor3x@db.lan/shop'",
        "header = 'Authorization: Bearer Zq8xVb71LmPo93TtRw'",
        "machine host.lan\n  login ann\n  password Tr0ub4dor&3\n",
    ],
)
def test_find_secrets_ignores_context_in_published_files(text):
    assert found(text, TextKind.DATA) != [] == found(text, TextKind.PUBLISHED)


@pytest.mark.parametrize("what", TOKENS)
def test_find_secrets_detects_tokens_in_published_files(what):
    assert found(f"password = 'x {TOKENS[what]}'\n", TextKind.PUBLISHED) == [(1, what)]


def test_find_secrets_detects_private_keys_in_published_files():
    key = f"-----BEGIN PRIVATE KEY-----\n{KEY_LINES}\n-----END PRIVATE KEY-----\n"
    assert found(key, TextKind.PUBLISHED) == [(1, "a private key")]


def test_find_secrets_skips_line_with_comment():
    text = "password = 'Tr0ub4dor&3'  # modpack: not a secret\npassword = 'Tr0ub4dor&4'\n"
    assert [line for line, _ in found(text)] == [2]


def test_find_secrets_detects_known_values():
    known = {b"plain words": "the value of A in .env"}
    assert found("x = 'plain words'", known=known) == [(1, "the value of A in .env")]


def test_excerpt_shows_at_most_four_characters():
    [secret] = find_secrets(b"password = 'Tr0ub4dor&3'", TextKind.SOURCE)
    assert secret.excerpt == "'Tr0u...' (11 characters)"
    assert len(secret.fingerprint) == 12


def test_find_secrets_detects_secret_at_chunk_border_once():
    token = TOKENS["a GitHub token"].encode()
    for before in (4 << 20) - 20, (4 << 20), (4 << 20) + 100:
        data = b"\n" * before + token + b"\n" * (5 << 20)
        assert [s.position for s in find_secrets(data, TextKind.DATA)] == [before]


def test_find_secrets_searches_binary_data():
    token = TOKENS["a GitHub token"].encode()
    data = DRAWN.randbytes(1 << 20) + b"\0" + token + b"\0" + DRAWN.randbytes(1 << 20)
    [secret] = find_secrets(data, TextKind.DATA)
    assert secret.value == token and secret.line is None


@pytest.mark.parametrize(
    "text",
    [
        b"://" * 100_000,
        b"api_key" * 50_000,
        b"-----BEGIN PRIVATE KEY-----" * 20_000,
        b"eyJaaaaaaaa." * 30_000,
        b"machine" + b" " * 300_000,
        b"a_" * 150_000 + b"password = x",
        b"X" * 300_000 + b"://",
        b"password = '" + b"-" * 60 + b"1a!'",
        b", password: aaaaaaaaa1" * 20_000,
        b"password" * 50_000,
        b"api_keyq\1h\1X\x08\0\0\0" * 20_000,
        b"LS0tLS1CRUdJTiBQUklWQVRFIEtFWa" * 10_000,
    ],
)
@pytest.mark.parametrize("kind", [TextKind.DATA, TextKind.PICKLE])
def test_find_secrets_takes_linear_time(text, kind):
    before = time.process_time()
    find_secrets(text, kind)
    assert time.process_time() - before < 30  # takes tenths of a second; without limits, minutes


def test_env_file_secrets_yields_secret_values(tmp_path):
    text = (
        "# database\nDEBUG=1\nSTAGE=production\nexport DB_PASSWORD='Tr0ub4dor&3'\n"
        "WHERE=/srv/data/v1/words2\nDSN=postgres://ann:w0rdOfAnn@db/x\nAPI_KEY=your_key_here1\n"
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
    "a Kaggle key": f'{{"username": "ann", "key": "{drawn(32, HEX)}"}}',
    "a Docker token": "dckr" + "_pat_" + drawn(27),
    "a container registry password": f'"auth": "{drawn(31)}="',
    "a Vault token": "hv" + "s." + drawn(95),
    "a Telegram token": f"{drawn(9, string.digits[1:])}:A" + "A" + drawn(33),
    "an age key": "AGE-SECRET" + "-KEY-1" + drawn(58, UPPER),
    "an Azure access key": "SharedAccess" + f"Key={base64.b64encode(DRAWN.randbytes(32)).decode()}",
    "an Azure client secret": f"{drawn(3)}8" + "Q~" + drawn(34),
    "a private key without PEM headers": "MIIEvw" + "IBADANBgkqhkiG9w0BAQEFAASC" + drawn(900),
    "a credential in an HTTP header": f"'Authorization': 'Bearer {drawn(40)}'",
    "a login password": "get(url, auth=('ann', 'Tr0ub4dor&3'))",
}


@pytest.mark.parametrize("what", MORE_TOKENS)
def test_find_secrets_detects_more_token_formats(what):
    assert found(f"x = 1\nx = {MORE_TOKENS[what]}\n", TextKind.DATA) == [(2, what)]
    assert what in [each for _, each in found(pickle.dumps([MORE_TOKENS[what]]), TextKind.PICKLE)]


@pytest.mark.parametrize("protocol", range(2, 6))
@pytest.mark.parametrize("login", [f"Bearer {drawn(40)}", f"bearer {drawn(20)}"])
def test_find_secrets_detects_pickled_bearer_token(login, protocol):
    headers = pickle.dumps({"headers": {"Authorization": login}}, protocol)
    assert found(headers, TextKind.PICKLE) == [(None, "a credential in an HTTP header")]


@pytest.mark.parametrize(
    "text",
    [
        "Bearer {token}",
        "Bearer <your token goes here>",
        "Bearer YOUR_TOKEN_GOES_HERE_123",
        "the bearer understandably1 waits",
        "a forbearer 8f3kq92Zs0vT1mNq",
    ],
)
def test_find_secrets_ignores_other_headers(text):
    assert found(f"x = {text!r}\n") == []


@pytest.mark.parametrize("label", ["RSA PRIVATE", "PRIVATE", "EC PRIVATE", "OPENSSH PRIVATE"])
def test_find_secrets_ignores_base64_certificate(label):
    def encoded(label):
        text = f"-----BEGIN {label}-----\n{KEY_LINES}\n-----END {label}-----\n"
        return f"client-key-data: {base64.b64encode(text.encode()).decode()}\n"

    assert found(encoded(f"{label} KEY"), TextKind.DATA) == [(1, "a private key in base64")]
    assert found(encoded("CERTIFICATE"), TextKind.DATA) == []


@pytest.mark.parametrize(
    "text",
    [
        "password = f'Tr0ub4dor&3'",
        "password = (\n    'Tr0ub4dor&3'\n)",
        "password = SecretStr('Tr0ub4dor&3')",
        "password: SecretStr = 'Tr0ub4dor&3'",
        "password: Optional[str] = 'Tr0ub4dor&3'",
        "password: str | None = 'Tr0ub4dor&3'",
        "password = os.environ.get('DB_PASSWORD') or 'Tr0ub4dor&3'",
        "if password == 'Tr0ub4dor&3': pass",
        "password = 'Tr0ub4$dor3'",
        "password = 'Tr0<ub4{dor3'",
        "DB_PASS = 'Tr0ub4dor&3'",
        "os.environ['PGPASSWORD'] = 'Tr0ub4dor&3'",
        "dbpassword = 'Tr0ub4dor&3'",
        "clientsecret = 'Zq8xVb71LmPo93TtRw'",
        "ENCRYPTION_KEY = 'Zq8xVb71LmPo93TtRw'",
        "run('mysql --password=Tr0ub4dor&3 -u ann')",
        "connect('Server=x;Uid=ann;Pwd=Tr0ub4dor3;')",
        "url = 'redis://:Tr0ub4dor3@cache.lan:6379'",
        "url = 'postgres://ann:tr0ub4dor3@db'",
        "url = 'postgres://ann:Tr0ub%40dor3@db/x'",
    ],
)
def test_find_secrets_detects_more_notations(text):
    assert [line for line, _ in found(f"\n\n{text}\n")] == [4 if "\n" in text else 3]


@pytest.mark.parametrize(
    "text",
    [
        "- user: ann\n- password: Tr0ub4dor&3",
        "\ndb: {user: ann, password: Tr0ub4dor&3}",
        "\npassword = Tr0ub4dor&3 ; of production",
        "\npassword: Tr0ub4dor&3  # of production",
        "\n<password>Tr0ub4dor&3</password>",
        '\n{"source": ["password = \\"Tr0ub4dor&3\\"\\n"]}',
    ],
)
def test_find_secrets_detects_more_notations_in_data(text):
    assert found(text, TextKind.DATA) == [(2, "a value with a secret name")]
    assert found(text.encode("utf-16"), TextKind.DATA) == [(2, "a value with a secret name")]


@pytest.mark.parametrize("protocol", [2, 3])
def test_find_secrets_follows_memoized_names(protocol):
    keys = ["d8e8fca2dc0f896fd7cb4cb0031ba249", "b7e4a1c03d5f96e2a8c1d4f70b3e6952"]
    for before in [], list(map(str, range(300))):
        data = pickle.dumps([before, *({"api_key": key} for key in keys)], protocol)
        assert [s.value.decode() for s in find_secrets(data, TextKind.PICKLE)] == keys


@pytest.mark.parametrize(
    "text",
    [
        "forward_pass = 'conv1-relu2-pool3'",
        "password = f'{prefix}-1a2b3c4d'",
        "password = os.environ['DB_PASSWORD_2'] or getpass('Password_2:')",
        "sort_key = 'd8e8fca2dc0f896fd7cb4cb0031ba249'",
        "f(password=password2hash, token=tokenizer8x)",
        "url = 'https://user:password1@host/'",
        "password = '' + '-' * 40",
        "integrity = 'sha512-9oPzj2ku1a+b0kQ7p1bhZ0nXc3vT7m4yJq5w=='",
    ],
)
def test_find_secrets_ignores_more_names_and_digests(text):
    assert found(text) == [] and found(text, TextKind.DATA) == []


def test_find_secrets_detects_long_token_with_placeholder_word():
    token = "ey" + "J" + drawn(40) + ".ey" + "J" + drawn(100) + "xxx" + drawn(60) + "." + drawn(43)
    assert found(f"x = {token!r}") == [(1, "a JSON web token")]


def test_excerpt_shows_at_most_a_third():
    [secret] = find_secrets(b"password = 'q7w!e8rt'", TextKind.SOURCE)
    assert secret.excerpt == "'q7w...' (8 characters)"
    assert "q7w!" not in repr(secret)


def test_env_file_secrets_ignores_labels():
    text = b"BUCKET=shop-models-2024-prod\nBASE=some-llm-3-8b-instruct\nX=Zq8xVb71LmPo93TtRw\n"
    assert [name for name, _ in env_file_secrets(text)] == ["X"]
