"""Targets from waterline.toml, environment and file_sd; secrets stay secret; visitors stay inside the policy."""

from __future__ import annotations

import ipaddress
import json
from pathlib import Path

import pytest

from connectors.addresses import VISITOR, address_class, metrics_url, redacted
from connectors.errors import BadTarget, NotAllowed
from connectors.targets import Settings, file_sd, load, visitor_target

TOML = """
file_sd = "pool.json"
[policy]
visitors_may_add = true
allow_addresses = ["loopback"]
[[targets]]
name = "gpu-1"
url = "http://gpu-1:8000"
max_num_seqs = 256
max_num_batched_tokens = 8192
verify = false
[targets.labels]
zone = "a"
[[targets]]
name = "store"
kind = "prometheus"
url = "https://mimir.example/prometheus"
selector = '{job="vllm"}'
"""


def test_everything_together(tmp_path: Path) -> None:
    (tmp_path / "waterline.toml").write_text(TOML, encoding="utf-8")
    (tmp_path / ".streamlit").mkdir()
    (tmp_path / ".streamlit" / "secrets.toml").write_text(
        '[targets.store]\nuser = "u"\npassword = "p4ss"\nheaders = {X-Scope-OrgID = "team"}\n',
        encoding="utf-8",
    )
    (tmp_path / "pool.json").write_text(
        json.dumps(
            [
                {"targets": ["gpu-3:8000", "[2001:db8::7]:8000"], "labels": {"model": "m"}},
                {"targets": ["gpu-4:443"], "labels": {"__scheme__": "https", "__metrics_path__": "/m"}},
            ]
        ),
        encoding="utf-8",
    )
    environ = {"WATERLINE_TARGETS": "gpu-2=http://gpu-2:8000/base/", "WATERLINE_TOKEN_GPU_1": "t0ken"}
    settings = load(root=tmp_path, environ=environ)
    found = {target.name: target for target in settings.targets}
    assert found["gpu-1"].url == "http://gpu-1:8000/metrics"
    assert found["gpu-1"].limits.max_num_seqs == 256
    assert found["gpu-1"].access.token == "t0ken" and found["gpu-1"].access.verify is False
    assert found["gpu-1"].labels == {"zone": "a"}
    assert found["gpu-2"].url == "http://gpu-2:8000/base/metrics"
    assert found["store"].url == "https://mimir.example/prometheus"
    assert found["store"].access.username == "u" and found["store"].access.password == "p4ss"
    assert found["gpu-3:8000"].labels == {"model": "m"}
    assert found["[2001:db8::7]:8000"].url == "http://[2001:db8::7]:8000/metrics"
    assert found["gpu-4:443"].url == "https://gpu-4:443/m"
    shown = repr(settings)
    assert "t0ken" not in shown and "p4ss" not in shown and "team" not in shown
    assert settings.visitors_may_add
    assert visitor_target("gpu-9:8000", settings).policy.allowed == {"loopback"}


def test_nothing_configured_is_no_target(tmp_path: Path) -> None:
    assert load(root=tmp_path, environ={}) == Settings()


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        ("[[targets]]\nname='a'", "no url"),
        ("[[targets]]\nurl='http://h'\ntoken='x'", "does not belong"),
        ("[[targets]]\nurl='http://u:p@h'", "credentials do not belong"),
        ("[[targets]]\nurl='http://h'\nmax_num_seqs=0", "max_num_seqs"),
        ("[[targets]]\nurl='http://h'\nkind='x'", "kind"),
        ("[[targets]]\nname='a'\nurl='http://h'\n[[targets]]\nname='a'\nurl='http://i'", "two targets"),
        ("[policy]\nallow_addresses=['everything']", "allow_addresses"),
        ("file_sd = 'none.json'", "file_sd"),
        ("nonsense", "TOML"),
    ],
)
def test_bad_settings_are_named(tmp_path: Path, toml: str, words: str) -> None:
    (tmp_path / "waterline.toml").write_text(toml, encoding="utf-8")
    with pytest.raises(BadTarget, match=words) as caught:
        load(root=tmp_path, environ={})
    assert "\n" not in str(caught.value)


def test_file_sd_must_be_a_list_of_groups(tmp_path: Path) -> None:
    path = tmp_path / "sd.json"
    for text in ("{}", "[1]", '[{"targets": "a"}]', "oops"):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(BadTarget):
            file_sd(path)


def test_visitors_add_nothing_unless_allowed() -> None:
    with pytest.raises(NotAllowed, match="switched off"):
        visitor_target("http://gpu-1:8000", Settings())
    with pytest.raises(BadTarget, match="credentials"):
        visitor_target("http://u:p@gpu-1:8000", Settings(visitors_may_add=True))


REFUSED = [
    "127.0.0.1", "127.8.9.1", "::1", "0.0.0.0", "::", "169.254.169.254", "169.254.1.1", "fe80::1", "fd00:ec2::254",
    "100.100.100.200", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe",
    "2002:7f00:1::", "224.0.0.1", "255.255.255.255",
]  # fmt: skip
ALLOWED = ["10.0.0.5", "192.168.1.4", "172.16.3.3", "8.8.8.8", "2001:4860::8", "fd12:3456::1"]


@pytest.mark.parametrize("address", REFUSED)
def test_refused_addresses(address: str) -> None:
    with pytest.raises(NotAllowed, match="may not be added"):
        VISITOR.check("name", ipaddress.ip_address(address))


@pytest.mark.parametrize("address", ALLOWED)
def test_ordinary_addresses(address: str) -> None:
    assert address_class(ipaddress.ip_address(address)) is None
    VISITOR.check("name", ipaddress.ip_address(address))


def test_a_metadata_name_is_refused_whatever_it_resolves_to() -> None:
    with pytest.raises(NotAllowed):
        VISITOR.check("metadata.google.internal", ipaddress.ip_address("10.0.0.5"))


@pytest.mark.parametrize(
    ("typed", "url"),
    [
        ("gpu-1", "http://gpu-1/metrics"),
        ("http://gpu-1:8000", "http://gpu-1:8000/metrics"),
        ("http://gpu-1:8000/", "http://gpu-1:8000/metrics"),
        (" https://gw/team/vllm/metrics ", "https://gw/team/vllm/metrics"),
        ("http://[2001:db8::5]:8000/metrics", "http://[2001:db8::5]:8000/metrics"),
        ("[2001:db8::5]:8000", "http://[2001:db8::5]:8000/metrics"),
        ("http://h/metrics?x=1#part", "http://h/metrics?x=1"),
    ],
)
def test_typed_addresses(typed: str, url: str) -> None:
    assert metrics_url(typed) == url


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("2001:db8::5:8000", "brackets"),
        ("http://2001:db8::5:8000/metrics", "brackets"),
        ("file:///etc/passwd", "scheme"),
        ("http://h:99999/", "cannot be read"),
        ("http://", "no host"),
        ("http://a b/", "no host"),
        ("http://user@h/", "credentials"),
    ],
)
def test_addresses_that_cannot_be_used(typed: str, words: str) -> None:
    with pytest.raises(BadTarget, match=words):
        metrics_url(typed)


def test_redaction() -> None:
    assert redacted("http://u:p@h:1/m?api_key=abc&x=1&token=t") == "http://h:1/m?api_key=...&x=1&token=..."
