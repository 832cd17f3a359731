"""Where targets come from: waterline.toml, the environment, Prometheus file_sd files; and how each is asked.

Secrets come from the environment or .streamlit/secrets.toml only, never from an address, and never appear
in ``repr``. Visitors may add a target only where the operator allowed it, and then under the visitor
address policy.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from connectors.addresses import OPERATOR, AddressPolicy, metrics_url
from connectors.engine_config import Limits
from connectors.errors import BadTarget, NotAllowed
from connectors.http import Access

CONFIG = "waterline.toml"
SECRETS = ".streamlit/secrets.toml"
NAME = re.compile(r"[^A-Za-z0-9]+")
ALLOWABLE = ("loopback", "link-local", "metadata")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One thing to scrape: a metrics page, or a Prometheus-compatible server with a selector."""

    name: str
    url: str
    kind: Literal["metrics", "prometheus"] = "metrics"
    selector: str | None = None
    access: Access = field(default_factory=Access)
    limits: Limits = field(default_factory=Limits)
    labels: Mapping[str, str] = field(default_factory=dict)
    policy: AddressPolicy = OPERATOR
    demo: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All targets of this process and what visitors may add."""

    targets: tuple[Target, ...] = ()
    visitors_may_add: bool = False
    visitor_policy: AddressPolicy = field(default_factory=AddressPolicy)


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise BadTarget(f"{path.name} cannot be read as TOML") from error


def _env_name(name: str) -> str:
    return NAME.sub("_", name).strip("_").upper()


def access_for(
    name: str,
    *,
    settings: Mapping[str, Any],
    secrets: Mapping[str, Any],
    environ: Mapping[str, str],
) -> Access:
    """How to ask a target: files and ``verify`` from its settings, secrets from environment or secrets file.

    Environment: ``WATERLINE_TOKEN_<NAME>``, ``WATERLINE_USER_<NAME>``, ``WATERLINE_PASSWORD_<NAME>``,
    ``WATERLINE_HEADERS_<NAME>`` (JSON object); secrets file: ``[targets.<name>]`` with token, user,
    password, headers. BadTarget where a secret stands in waterline.toml.
    """
    for key in ("token", "password", "headers"):
        if key in settings:
            raise BadTarget(f"{key} of target {name} does not belong in {CONFIG}; use the secrets file")
    stored = secrets.get(name, {})
    if not isinstance(stored, Mapping):
        stored = {}
    tail = _env_name(name)
    headers = dict(stored.get("headers", {}))
    try:
        headers |= json.loads(environ.get(f"WATERLINE_HEADERS_{tail}", "{}"))
    except (ValueError, TypeError, RecursionError):
        raise BadTarget(f"WATERLINE_HEADERS_{tail} is not a JSON object") from None
    return Access(
        token=environ.get(f"WATERLINE_TOKEN_{tail}") or stored.get("token"),
        username=environ.get(f"WATERLINE_USER_{tail}") or stored.get("user"),
        password=environ.get(f"WATERLINE_PASSWORD_{tail}") or stored.get("password"),
        headers={str(k): str(v) for k, v in headers.items()},
        ca_file=settings.get("ca_file"),
        client_cert=settings.get("client_cert"),
        client_key=settings.get("client_key"),
        verify=bool(settings.get("verify", True)),
    )


def _limits(settings: Mapping[str, Any]) -> Limits:
    found: dict[str, float | None] = {}
    for key in ("max_num_seqs", "max_num_batched_tokens", "max_model_len"):
        value = settings.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise BadTarget(f"{key} {str(value)[:40]!r} is not valid; valid: a whole number from 1")
        found[key] = float(value) if value is not None else None
    return Limits(**found)


def _target(
    entry: Mapping[str, Any], *, secrets: Mapping[str, Any], environ: Mapping[str, str], number: int
) -> Target:
    if not isinstance(entry, Mapping) or not entry.get("url"):
        raise BadTarget(f"target {number} has no url; valid: url = 'http://host:port/metrics'")
    kind = entry.get("kind", "metrics")
    if kind not in ("metrics", "prometheus"):
        raise BadTarget(f"kind {str(kind)[:40]!r} is not valid; valid: metrics, prometheus")
    name = str(entry.get("name") or entry["url"])
    url = str(entry["url"])
    labels = entry.get("labels", {})
    return Target(
        name=name,
        url=metrics_url(url, path="/metrics" if kind == "metrics" else ""),
        kind=kind,
        selector=entry.get("selector"),
        access=access_for(name, settings=entry, secrets=secrets, environ=environ),
        limits=_limits(entry),
        labels={str(k): str(v) for k, v in labels.items()} if isinstance(labels, Mapping) else {},
        demo=bool(entry.get("demo", False)),
    )


def file_sd(
    path: Path, *, secrets: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None
) -> list[Target]:
    """Targets of a Prometheus file_sd JSON file: ``[{"targets": ["host:port"], "labels": {...}}]``.

    ``__scheme__`` and ``__metrics_path__`` are honoured. Raises BadTarget.
    """
    try:
        groups = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadTarget(f"{path.name} cannot be read as a file_sd JSON list") from error
    if not isinstance(groups, list):
        raise BadTarget(f"{path.name} is not a file_sd JSON list")
    found: list[Target] = []
    for group in groups:
        if not isinstance(group, Mapping) or not isinstance(group.get("targets"), list):
            raise BadTarget(f"{path.name}: each entry needs a list 'targets'")
        labels = {str(k): str(v) for k, v in dict(group.get("labels") or {}).items()}
        scheme = labels.get("__scheme__", "http")
        metrics_path = labels.get("__metrics_path__", "/metrics")
        for host in group["targets"]:
            entry = {
                "name": str(host),
                "url": f"{scheme}://{host}{metrics_path}",
                "labels": {k: v for k, v in labels.items() if not k.startswith("__")},
            }
            found.append(_target(entry, secrets=secrets or {}, environ=environ or {}, number=len(found) + 1))
    return found


def _from_environment(environ: Mapping[str, str]) -> list[dict[str, str]]:
    entries = []
    for part in environ.get("WATERLINE_TARGETS", "").replace(",", " ").split():
        name, equals, url = part.partition("=")
        bare = not equals or "/" in name or ":" in name
        entries.append({"url": part} if bare else {"name": name, "url": url})
    return entries


def _unique(targets: Iterable[Target]) -> tuple[Target, ...]:
    seen: dict[str, Target] = {}
    for target in targets:
        if target.name in seen:
            raise BadTarget(f"two targets are named {target.name}; names must differ")
        seen[target.name] = target
    return tuple(seen.values())


def load(*, root: Path | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """Targets and policy from ``waterline.toml`` under ``root``, the environment and file_sd files.

    Environment: ``WATERLINE_TARGETS`` ("name=url name=url"), ``WATERLINE_FILE_SD`` (path),
    ``WATERLINE_ALLOW_VISITOR_TARGETS=1``, ``WATERLINE_ALLOW_ADDRESSES`` ("loopback link-local"). Raises
    BadTarget.
    """
    root = root or Path.cwd()
    environ = os.environ if environ is None else environ
    config = _toml(root / CONFIG)
    secrets = _toml(root / SECRETS).get("targets", {})
    policy = config.get("policy", {})
    entries = [*config.get("targets", []), *_from_environment(environ)]
    targets = [
        _target(entry, secrets=secrets, environ=environ, number=number)
        for number, entry in enumerate(entries, start=1)
    ]
    paths = config.get("file_sd", [])
    paths = [paths] if isinstance(paths, str) else list(paths)
    if environ.get("WATERLINE_FILE_SD"):
        paths.append(environ["WATERLINE_FILE_SD"])
    for path in paths:
        targets += file_sd(root / path, secrets=secrets, environ=environ)
    allowed = list(policy.get("allow_addresses", []))
    allowed += environ.get("WATERLINE_ALLOW_ADDRESSES", "").replace(",", " ").split()
    for name in allowed:
        if name not in ALLOWABLE:
            raise BadTarget(f"allow_addresses {name[:40]!r} is not valid; valid: {', '.join(ALLOWABLE)}")
    may_add = bool(policy.get("visitors_may_add", False))
    may_add = may_add or environ.get("WATERLINE_ALLOW_VISITOR_TARGETS", "") in ("1", "true", "yes")
    return Settings(
        targets=_unique(targets),
        visitors_may_add=may_add,
        visitor_policy=AddressPolicy(allowed=frozenset(allowed)),
    )


def visitor_target(text: str, settings: Settings) -> Target:
    """A target that a visitor typed. NotAllowed where the operator did not open this; BadTarget for a bad
    address.

    The address itself is checked when it is resolved and connected, with the visitor policy it carries.
    """
    if not settings.visitors_may_add:
        raise NotAllowed("adding targets is switched off; the operator lists them in waterline.toml")
    url = metrics_url(text)
    return Target(name=url, url=url, policy=settings.visitor_policy)
