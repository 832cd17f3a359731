"""``python -m connectors scrape|watch|config|demo``: one look, repeated looks, a model's config, a demonstration pool.

Bad input ends with status 2 and one line on standard error; a target that is down is a result (status 1).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from capacity.errors import CapacityError
from capacity.telemetry import TargetSnapshot, down
from connectors.addresses import metrics_url, redacted
from connectors.alert_rules import rule_file
from connectors.engine_config import Limits
from connectors.errors import BadTarget, ConnectorError
from connectors.grafana import dashboard_file
from connectors.model_config import config_of
from connectors.prometheus_snapshots import recent
from connectors.report import PoolReport, pool_report
from connectors.scrape import client_for, observe, read_file
from connectors.targets import Target, access_for
from connectors.text_report import lines

DAY_S = 86_400.0
MOST = 10_000_000
LEAST_PAUSE_S = 0.05
RULE_FILES = {"alerts": rule_file, "grafana": dashboard_file}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        print(f"waterline: {message}", file=sys.stderr)
        raise SystemExit(2)


def seconds(text: str) -> float:
    """Seconds above 0, at most the thirty years between two files."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1e9:
        raise argparse.ArgumentTypeError(f"{text[:40]} is not valid; valid: seconds above 0, at most 1e9")
    return value


def whole(text: str) -> float:
    """A whole number from 1 to ten million, as the limits and counts are."""
    value = int(text) if text.isascii() and text.isdigit() and len(text) < 12 else 0
    if not 1 <= value <= MOST:
        raise argparse.ArgumentTypeError(f"{text[:40]} is not valid; valid: a whole number from 1 to {MOST}")
    return float(value)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m connectors", description="Read what LLM serving engines export.")
    verbs = parser.add_subparsers(dest="verb", required=True, parser_class=_Parser)
    for verb, words in (("scrape", "read a target once"), ("watch", "read a target again and again")):
        sub = verbs.add_parser(verb, help=words)
        sub.add_argument("source", nargs="?", help="URL of a metrics page, or a file with one")
        if verb == "scrape":
            sub.add_argument("newer", nargs="?", help="a second, newer file: gives rates")
            sub.add_argument("--json", action="store_true", help="print JSON")
        sub.add_argument("--interval", type=seconds, help="seconds between the two files or scrapes")
        sub.add_argument(
            "--prometheus", metavar="URL", help="read from a Prometheus-compatible server instead"
        )
        sub.add_argument("--selector", help="label matchers, such as '{job=\"vllm\"}'")
        for flag in ("max-num-seqs", "max-num-batched-tokens", "max-model-len"):
            sub.add_argument(f"--{flag}", type=whole, help="the engine's start-up setting, for the verdict")
        if verb == "watch":
            sub.add_argument("--count", type=whole, help="stop after this many reports")
    config = verbs.add_parser("config", help="print a model's config.json from a path or a Hugging Face hub")
    config.add_argument("source", help="organisation/name, a file or a model folder")
    sub = verbs.add_parser("rules", help="print Prometheus alert rules or a Grafana dashboard")
    sub.add_argument("--what", choices=tuple(RULE_FILES), default="alerts", help="which file")
    sub.add_argument("--selector", help="label matchers, such as '{job=\"vllm\"}'")
    sub.add_argument("--output", metavar="FILE", help="write to a file instead")
    verbs.add_parser("demo", help="run a demonstration pool", add_help=False)
    return parser


def _is_url(text: str) -> bool:
    return "://" in text or (not Path(text).exists() and ":" in text and not text.startswith((".", "/")))


def _limits(args: argparse.Namespace) -> Limits:
    return Limits(
        max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=args.max_num_batched_tokens,
        max_model_len=args.max_model_len,
    )


def _target(args: argparse.Namespace) -> Target:
    access = access_for("cli", settings={}, secrets={}, environ=os.environ)
    if args.prometheus:
        if args.source is not None:
            raise BadTarget("give either a URL or file, or --prometheus")
        url = metrics_url(args.prometheus, path="")
        return Target(
            name=redacted(url),
            url=url,
            kind="prometheus",
            selector=args.selector,
            access=access,
            limits=_limits(args),
        )
    if args.selector:
        raise BadTarget("--selector needs --prometheus URL")
    url = metrics_url(args.source)
    return Target(name=redacted(url), url=url, access=access, limits=_limits(args))


def _files(args: argparse.Namespace) -> tuple[str, dict[str, list[TargetSnapshot]]]:
    limits = _limits(args)
    first = read_file(Path(args.source), limits=limits)
    if args.newer is None:
        return args.source, first
    if _is_url(args.newer):
        raise BadTarget("the second source must be a file like the first")
    if args.interval is None:
        raise BadTarget("two files need --interval: the seconds between them")
    second = read_file(Path(args.newer), limits=limits)
    if len(first) > 1 or len(second) > 1:
        raise BadTarget("two files can be compared where each is one metrics page")
    (older,), (newer,) = (snapshots[-1:] for found in (first, second) for snapshots in found.values())
    base = older.time_s
    return args.newer, {args.newer: [_at(older, 0.0, base), _at(newer, args.interval, base)]}


def _at(snapshot: TargetSnapshot, offset_s: float, base_s: float) -> TargetSnapshot:
    """A file's snapshot placed on a steady clock, ``offset_s`` after the first."""
    engines = tuple(replace(e, time_s=base_s + offset_s, monotonic_s=offset_s) for e in snapshot.engines)
    return replace(snapshot, time_s=base_s + offset_s, monotonic_s=offset_s, engines=engines)


def _pause(args: argparse.Namespace) -> None:
    """BadTarget where a server would be asked without a pause (its engine answers on the same event loop), or
    not again today.
    """
    if args.interval is not None and not LEAST_PAUSE_S <= args.interval <= DAY_S:
        valid = f"{LEAST_PAUSE_S:g} to {DAY_S:.0f} s between two looks at a server"
        raise BadTarget(f"--interval {args.interval:g} is not valid; valid: {valid}")


def _scrape(args: argparse.Namespace) -> tuple[PoolReport, int]:
    if args.source is None and not args.prometheus:
        raise BadTarget("nothing to read; valid: a URL, a file, or --prometheus URL")
    if args.source is not None and not args.prometheus and not _is_url(args.source):
        if args.selector:
            raise BadTarget("--selector needs --prometheus URL")
        name, found = _files(args)
        report = pool_report(name, found, single="since start")
        return report, 1 if report.down and not report.engines else 0
    if args.newer is not None:
        raise BadTarget("two sources must both be files; for a URL use --interval")
    _pause(args)
    target = _target(args)
    if target.kind == "prometheus":
        return _prometheus(target)
    client = client_for(target)
    snapshots = [observe(target, client=client)]
    if args.interval and snapshots[0].up:
        time.sleep(args.interval)
        snapshots.append(observe(target, client=client))
    report = pool_report(target.name, {target.name: snapshots}, single="since start")
    return report, 0 if snapshots[-1].up else 1


def _prometheus(target: Target) -> tuple[PoolReport, int]:
    try:
        lines_, notes = recent(target)
    except BadTarget:
        raise
    except ConnectorError as error:
        gone = down(target.name, time_s=time.time(), reason=str(error))
        return pool_report(target.name, {target.name: [gone]}), 1
    report = pool_report(target.name, lines_)
    return replace(report, notes=(*notes, *report.notes)), 0


def _watch(args: argparse.Namespace) -> int:
    if args.source is None and not args.prometheus:
        raise BadTarget("nothing to watch; valid: a URL, or --prometheus URL")
    _pause(args)
    target = _target(args)
    client = client_for(target)
    interval = args.interval or 5.0
    snapshots: list[TargetSnapshot] = []
    due, shown = time.monotonic(), 0.0
    while True:
        snapshots = [*snapshots, observe(target, client=client)][-12:]
        print("\n".join(lines(pool_report(target.name, {target.name: snapshots}))), flush=True)
        shown += 1
        if args.count and shown >= args.count:
            return 0 if snapshots[-1].up else 1
        due = max(due + interval, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))


def _rules(args: argparse.Namespace) -> int:
    text = RULE_FILES[args.what](args.selector)
    if args.output is None:
        print(text, end="")
        return 0
    try:
        Path(args.output).write_text(text, encoding="utf-8")
    except OSError as error:
        reason = error.strerror.lower() if error.strerror else "unknown cause"
        raise BadTarget(f"{args.output} cannot be written ({reason}); valid: a file in a folder") from error
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["demo"]:
        from connectors import demo_engine

        return demo_engine.main(words[1:])
    args = _parser().parse_args(words)
    try:
        if args.verb == "watch":
            return _watch(args)
        if args.verb == "config":
            print(json.dumps(config_of(args.source), indent=2))
            return 0
        if args.verb == "rules":
            return _rules(args)
        report, status = _scrape(args)
    except (ConnectorError, CapacityError) as error:
        print(f"waterline: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    if args.json:
        print(json.dumps(report.as_json(), indent=2, allow_nan=False))
    else:
        print("\n".join(lines(report)))
    if status and report.down:
        print(f"waterline: {'; '.join(report.down.values())}", file=sys.stderr)
    return status


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
