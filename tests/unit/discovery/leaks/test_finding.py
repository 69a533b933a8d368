"""What is taken for a secret, and what is not."""

from __future__ import annotations

import pickle
import random
import string
import time

import pytest

from modpack.discovery.leaks.dotenv import folders_around, known_values, values_in
from modpack.discovery.leaks.finding import TextKind, find_secrets

DRAWN = random.Random(4)


def drawn(count, alphabet=string.ascii_letters + string.digits):
    return "".join(DRAWN.choice(alphabet) for _ in range(count))


KEY_LINES = "\n".join(drawn(64) for _ in range(6))
UPPER = string.ascii_uppercase + "234567"

# Put together here, so that this file itself holds none of them.
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
    return [(secret.line, secret.what) for secret in find_secrets(data, kind, known)]


@pytest.mark.parametrize("what", TOKENS)
def test_tokens_are_known_by_their_shapes(what):
    assert found(f"x = 1\nlogin({TOKENS[what]!r})\n") == [(2, what)]


@pytest.mark.parametrize("what", TOKENS)
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_tokens_in_pickles_are_known_whatever_opcodes_are_around(what, protocol):
    value = TOKENS[what]
    data = pickle.dumps({"a": ["x" * 200, value, value + " "], "b": value}, protocol)
    [first, *_] = find_secrets(data, TextKind.PICKLE)
    assert (first.what, first.value, first.line) == (what, value.encode(), None)
    assert data[first.position :].startswith(value.encode())


@pytest.mark.parametrize(
    "label", ["RSA PRIVATE", "PRIVATE", "EC PRIVATE", "OPENSSH PRIVATE", "ENCRYPTED PRIVATE"]
)
def test_private_keys_are_found_in_every_wrapping(label):
    key = f"-----BEGIN {label} KEY-----\n{KEY_LINES}\n-----END {label} KEY-----\n"
    in_json = key.replace("\n", "\\n")
    assert found(f'KEY = """{key}"""') == [(1, "a private key")]
    assert found('{"private": "' + in_json + '"}', TextKind.DATA) == [(1, "a private key")]
    assert found(pickle.dumps([key]), TextKind.PICKLE) == [(None, "a private key")]


def test_a_pgp_key_with_its_headers_is_found():
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
def test_values_are_known_by_their_names(text):
    assert [line for line, _ in found(f"\n\n{text}\n")] == [3]


@pytest.mark.parametrize(
    "text",
    [
        "DB_PASSWORD=Tr0ub4dor&3",
        "db:\n  password: Tr0ub4dor&3",
        "export API_KEY=Zq8xVb71LmPo93TtRw",
    ],
)
def test_values_without_quotes_are_known_in_data(text):
    assert [what for _, what in found(f"a: b\n{text}\n", TextKind.DATA)] == ["a secret by its name"]


def test_a_netrc_file_is_known():
    text = "machine host.lan\n  login ann\n  password Tr0ub4dor&3\n"
    assert found(text, TextKind.DATA) == [(3, "a password of a netrc file")]


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_values_in_pickles_are_known_by_their_names(protocol):
    state = {"rate": 0.1, "api_key": "d8e8fca2dc0f896fd7cb4cb0031ba249"}
    [secret] = find_secrets(pickle.dumps(state, protocol), TextKind.PICKLE)
    assert secret.value == b"d8e8fca2dc0f896fd7cb4cb0031ba249"


def test_sources_in_pickles_are_looked_through():
    source = "def f():\n    password = 'Tr0ub4dor&3'\n"
    assert found(pickle.dumps((source, 1)), TextKind.PICKLE) == [(None, "a secret by its name")]


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
    ],
)
def test_examples_names_and_digests_are_no_secrets(text):
    assert found(text) == []
    assert found(pickle.dumps([text]), TextKind.PICKLE) == []


def test_a_line_may_say_that_it_holds_none():
    text = "password = 'Tr0ub4dor&3'  # modpack: not a secret\npassword = 'Tr0ub4dor&4'\n"
    assert [line for line, _ in found(text)] == [2]


def test_values_that_are_known_are_found_whatever_they_look_like():
    known = {b"plain words": "the value of A in .env"}
    assert found("x = 'plain words'", known=known) == [(1, "the value of A in .env")]


def test_what_is_shown_is_no_more_than_four_characters():
    [secret] = find_secrets(b"password = 'Tr0ub4dor&3'", TextKind.SOURCE)
    assert secret.shown == "'Tr0u...' (11 characters)"
    assert len(secret.fingerprint) == 12


def test_secrets_are_found_where_pieces_meet_and_once():
    token = TOKENS["a GitHub token"].encode()
    for before in (4 << 20) - 20, (4 << 20), (4 << 20) + 100:
        data = b"\n" * before + token + b"\n" * (5 << 20)
        assert [s.position for s in find_secrets(data, TextKind.DATA)] == [before]


def test_secrets_in_binary_data_are_found():
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
    ],
)
@pytest.mark.parametrize("kind", [TextKind.DATA, TextKind.PICKLE])
def test_no_text_takes_long(text, kind):
    before = time.process_time()
    find_secrets(text, kind)
    assert time.process_time() - before < 30  # a few tenths; without bounds it takes minutes


def test_values_of_env_files_are_those_that_are_secret(tmp_path):
    text = (
        "# database\nDEBUG=1\nSTAGE=production\nexport DB_PASSWORD='Tr0ub4dor&3'\n"
        "WHERE=/srv/data/v1/words2\nDSN=postgres://ann:w0rdOfAnn@db/x\nAPI_KEY=your_key_here1\n"
    )
    assert dict(values_in(text.encode())) == {"DB_PASSWORD": b"Tr0ub4dor&3", "DSN": b"w0rdOfAnn"}
    (tmp_path / ".env.local").write_text(text)
    (tmp_path / ".env.example").write_text("OTHER_PASSWORD=Tr0ub4dor&9\n")
    known = known_values(tmp_path)
    assert set(known) == {b"Tr0ub4dor&3", b"w0rdOfAnn"}
    assert known[b"Tr0ub4dor&3"] == f"the value of DB_PASSWORD in {tmp_path / '.env.local'}"


def test_folders_are_looked_into_up_to_the_projects(tmp_path):
    inner = tmp_path / "src" / "shop"
    inner.mkdir(parents=True)
    assert list(folders_around(inner)) == [inner]
    (tmp_path / "pyproject.toml").touch()
    assert list(folders_around(inner)) == [inner, inner.parent, tmp_path]
