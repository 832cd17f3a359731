"""A model's config.json from a local path, or from a Hugging Face hub when it can be reached.

What it answers: which text to give to ``capacity.hf_config``. Left out: weights, tokenizers, caching,
proxies.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from capacity.hf_config import parse_config_text
from capacity.hf_config.text import config_from_text
from capacity.model import ModelSpec
from connectors.errors import (
    BadTarget,
    ConnectorError,
    Forbidden,
    NotMetrics,
    TimedOut,
    TooLarge,
    Unauthorised,
    Unreachable,
)
from connectors.http import Access, HttpClient

MAX_BYTES = 5_000_000
DEADLINE_S = 10.0
HUB = "https://huggingface.co"
MODEL_ID = re.compile(r"[A-Za-z0-9][\w.\-]{0,95}/[A-Za-z0-9][\w.\-]{0,95}")
REVISION = re.compile(r"[A-Za-z0-9][\w.\-]{0,99}")
INSTEAD = "paste or upload the config.json instead"


def read_config(path: str | Path) -> str:
    """The text of ``path``, or of ``config.json`` in that folder. Raises BadTarget, TooLarge, Unreachable."""
    file = Path(path)
    try:
        file = file.expanduser()
        if file.is_dir():
            file = file / "config.json"
        if not file.is_file():
            raise BadTarget(f"no config.json at {str(path)[:200]!r}; expected a file or a model folder")
        with file.open("rb") as stream:
            body = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or "not a usable path"
        raise Unreachable(f"cannot read {str(path)[:200]!r}: {reason.lower()}") from None
    if len(body) > MAX_BYTES:
        raise TooLarge(f"{file.name} is larger than {MAX_BYTES:,} bytes; expected a config.json")
    return _text(body, file.name)


def fetch_config(
    model_id: str,
    *,
    revision: str = "main",
    deadline_s: float = DEADLINE_S,
    environment: Mapping[str, str] | None = None,
) -> str:
    """The config.json of a hub model (``organisation/name``).

    ``HF_ENDPOINT`` names another hub, ``HF_TOKEN`` is sent to that host alone and never shown,
    ``HF_HUB_OFFLINE``
    is honoured. The whole exchange ends within ``deadline_s``. Raises ConnectorError with one sentence.
    """
    names = os.environ if environment is None else environment
    if MODEL_ID.fullmatch(model_id) is None or ".." in model_id:
        raise BadTarget(f"model id {model_id[:80]!r} is not of the form organisation/name")
    if REVISION.fullmatch(revision) is None or ".." in revision:
        raise BadTarget(f"revision {revision[:40]!r} is not a branch, tag or commit")
    if names.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        raise Unreachable(f"the hub is switched off by HF_HUB_OFFLINE; {INSTEAD}")
    hub = (names.get("HF_ENDPOINT") or HUB).strip().rstrip("/")
    host = _host(hub)
    token = (names.get("HF_TOKEN") or "").strip() or None
    client = HttpClient(Access(token=token), deadline_s=deadline_s, cap_bytes=MAX_BYTES)
    try:
        address = f"{hub}/{model_id}/resolve/{revision}/config.json"
        answer = client.get(address, accept="application/json", errors_too=True)
    except TimedOut:
        raise TimedOut(f"the hub at {host} did not answer within {deadline_s:g} s; {INSTEAD}") from None
    except (Unreachable, NotMetrics):
        raise Unreachable(f"the hub at {host} is not reachable from here; {INSTEAD}") from None
    except TooLarge:
        raise TooLarge(f"the config.json from {host} is larger than {MAX_BYTES:,} bytes") from None
    finally:
        client.close()
    _check_status(answer.status, model_id, host, token is not None)
    return _text(answer.body, f"the answer from {host}")


def _host(hub: str) -> str:
    """The hub's host and port. Raises BadTarget for anything but http or https without credentials."""
    try:
        parts = urlsplit(hub)
        host, port, user = parts.hostname, parts.port, parts.username
    except ValueError:
        host = port = user = None
    if host is None or user is not None or parts.scheme not in ("http", "https") or parts.query:
        raise BadTarget("HF_ENDPOINT is not an http or https address without credentials")
    return f"{host}:{port}"[:100] if port else host[:100]


def _check_status(status: int, model_id: str, host: str, has_token: bool) -> None:
    if status == 200:
        return
    if status == 401:
        hint = "the token in HF_TOKEN is not accepted" if has_token else "set HF_TOKEN for a gated model"
        raise Unauthorised(f"{host} does not know {model_id} or asks for credentials (401); {hint}")
    if status == 403:
        raise Forbidden(f"{host} refuses {model_id} (403); ask there for access, or paste the config.json")
    if status == 404:
        raise Unreachable(f"{host} has no config.json for {model_id} (404)")
    raise Unreachable(f"{host} answered with status {status}; expected 200")


def _text(body: bytes, name: str) -> str:
    try:
        return body.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise BadTarget(f"{name} is not utf-8 text; expected a config.json") from None


def _is_local(source: str) -> bool:
    """Whether ``source`` is a path: it looks like one, or exists."""
    try:
        return source.startswith((".", "/", "~")) or source.endswith(".json") or Path(source).exists()
    except (OSError, ValueError):
        return False


def config_of(source: str, *, deadline_s: float = DEADLINE_S) -> dict[str, Any]:
    """The config.json object at a local path or of a hub id; a path that exists wins over a hub id.

    Raises ConnectorError when it cannot be read, capacity.errors.ConfigError when it is no JSON object.
    """
    text = read_config(source) if _is_local(source) else fetch_config(source, deadline_s=deadline_s)
    return config_from_text(text)


def load_model(source: str, *, accept_upper_bound: bool = False, deadline_s: float = DEADLINE_S) -> ModelSpec:
    """The model at a local path or a hub id; a path that exists wins over a hub id.

    Raises ConnectorError when it cannot be read, capacity.errors.ConfigError when it is no decoder's config.
    """
    path, local = Path(source), _is_local(source)
    text = read_config(source) if local else fetch_config(source, deadline_s=deadline_s)
    name = (path.parent.name or path.name) if path.name == "config.json" else path.name
    return parse_config_text(text, model_id=name if local else source, accept_upper_bound=accept_upper_bound)


__all__ = ["ConnectorError", "config_of", "fetch_config", "load_model", "read_config"]
