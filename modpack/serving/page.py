"""The page on which a person tries the models, and the page of the OpenAPI document."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from modpack.core.call_signature import CallSignature
from modpack.serving.settings import Answer

_ASSETS = Path(__file__).with_name("assets")
_HTML = "text/html; charset=utf-8"


@cache
def _template() -> tuple[str, str]:
    """Return the page, and the security policy that allows its own script only."""
    text = (_ASSETS / "try.html").read_text(encoding="utf-8")
    script = re.search(r"<script>(.*?)</script>", text, re.DOTALL)
    assert script is not None
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "connect-src 'self'; img-src blob: data:; base-uri 'none'; form-action 'none'"
    )
    return text, policy


def start_page(models: Mapping[str, CallSignature]) -> Answer:
    """Return the page for trying models, with its content security policy."""
    text, policy = _template()
    described = {
        name: [{**spec._asdict(), "text": str(spec)} for spec in signature.inputs]
        for name, signature in models.items()
    }
    embedded = json.dumps(described).replace("<", "\\u003c")
    body = text.replace("{MODELS}", embedded).encode()
    return Answer(200, _HTML, body, headers=((b"content-security-policy", policy.encode()),))


def docs_page() -> Answer:
    """Return the page of the OpenAPI document, whose scripts come from a public network."""
    return Answer(200, _HTML, (_ASSETS / "docs.html").read_bytes())
