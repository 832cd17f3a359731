"""The Simulate page's widgets: a preset or a file to start from, pool, engine, workload, policies; all of it in the link.

Widgets in, a frozen record of texts out. With the pool from the plan, the Plan page's own widgets (and link keys) are
used. Left out: what the texts mean (simulate_fields, simulate_policies).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import streamlit as st

from capacity.errors import CapacityError
from capacity.hf_config.text import unique_keys
from pages.ui import inputs as plan_inputs
from pages.ui.link import pack, unpack
from pages.ui.simulate_fields import FIELDS, POOLS, Field, from_scenario, merged, to_scenario
from pages.ui.simulate_policies import GATES, LETTERS, Policy, policy_of
from pages.ui.simulate_presets import Start, starts

PREFIX = "sim_"
JSON_LINK = "sim_json_packed"
NOTE = "sim_note"
TRACE = "sim_trace"
KEEP: dict[str, Any] = {"bind": "query-params", "persist_state": "session"}
HEADS = {
    "pool": (":material/memory:", "Pool and steps"),
    "engine": (":material/settings:", "Engine"),
    "workload": (":material/forum:", "Workload"),
}
POLICY_PARTS = ("gate", "first", "second", "also")


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What the sidebar holds."""

    texts: dict[str, str]
    pool: str
    policies: tuple[Policy, ...]
    plan: plan_inputs.PlanInputs | None
    trace: str | None

    def base(self) -> dict[str, Any]:
        """The scenario without a policy, unchecked. Raises CapacityError."""
        own = to_scenario(self.texts, direct=self.plan is None)
        if self.trace is not None:
            given = own.get("workload", {})
            kept = {key: given[key] for key in ("speedup", "max_requests") if key in given}
            own["workload"] = kept
        if self.plan is None:
            return own
        planned = self.plan.scenario()
        if self.trace is None:
            workload = own.setdefault("workload", {})
            for key in ("prompt_tokens", "output_tokens"):
                if key in workload:
                    planned.pop(key, None)
        return merged(planned, own)

    def link_values(self) -> dict[str, str]:
        """Every input but an uploaded trace as a value of the link."""
        values = {f"{PREFIX}{key}": text for key, text in self.texts.items() if text and key != "json"}
        values[f"{PREFIX}pool"] = self.pool
        if (packed := pack(self.texts["json"])) is not None and self.texts["json"]:
            values[JSON_LINK] = packed
        for policy in self.policies:
            values |= {
                f"{PREFIX}{policy.letter}_{part}": text for part, text in policy.texts().items() if text
            }
        values[f"{PREFIX}count"] = str(len(self.policies))
        return values if self.plan is None else self.plan.link_values() | values


def start_from(start: Start) -> None:
    """Put a preset into the widgets (a callback)."""
    put(from_scenario(start.scenario) | {"seed": "1"}, start.policies, pool=POOLS[0])
    st.session_state["sim_preset_key"] = start.key


def put(texts: Mapping[str, str], policies: tuple[Policy, ...], *, pool: str) -> None:
    """Replace every input of this page."""
    state = st.session_state
    for field in FIELDS:
        state[PREFIX + field.key] = texts.get(field.key) or (None if field.choices else "")
    state["sim_json"] = texts.get("json", "")
    state["sim_pool"] = pool
    state["sim_count"] = str(len(policies))
    for letter in LETTERS:
        one = next((policy for policy in policies if policy.letter == letter), Policy(letter=letter))
        for part, text in one.texts().items():
            state[f"{PREFIX}{letter}_{part}"] = text or (None if part == "gate" else "")
    state[NOTE] = None
    state["sim_preset_key"] = None


def sidebar() -> Inputs:
    """Draw the controls and return what they hold."""
    fresh = _seed()
    with st.sidebar:
        _start_bar()
    state = st.session_state
    with st.sidebar:
        st.segmented_control(
            "Pool from", POOLS, key="sim_pool", required=True, width="stretch",
            help="Give blocks and step times, or let the Plan page's model, GPU and release give them.", **KEEP,
        )  # fmt: skip
    planned = (state.get("sim_pool") or POOLS[0]) == POOLS[1]
    plan = plan_inputs.sidebar(plan_inputs.known(), start_bar=False) if planned else None
    with st.sidebar:
        for group in ("workload", "engine") if planned else ("pool", "engine", "workload"):
            icon, head = HEADS[group]
            if planned:
                head = {"engine": "Scheduler and fleet", "workload": "Traffic"}[group]
            label = f"{icon} **{head}** · {_summary(group, fresh=fresh)}"
            with st.expander(label, key=f"sim_fold_{group}"):
                _group(group)
                if group == "workload":
                    more = sum(1 for f in FIELDS if f.group == "more" and state.get(PREFIX + f.key))
                    with st.popover(f"Advanced ({more} set)" if more else "Advanced", width="stretch"):
                        _group("more")
                    st.file_uploader(
                        "Trace (CSV or JSON lines)", type=["csv", "jsonl", "json", "txt"], key=TRACE,
                        help="arrival_s, prompt_tokens, output_tokens and perhaps priority, or the columns of Azure, "
                        "Mooncake, BurstGPT and ServeGen traces. It takes the place of arrivals and lengths.",
                    )  # fmt: skip
        for letter in LETTERS[: _count()]:
            _policy(letter, fresh=fresh)
        st.segmented_control(
            "Policies", ["1", "2", "3"], key="sim_count", required=True,
            help="How many policies run on the same requests.", **KEEP,
        )  # fmt: skip
        with st.expander(":material/data_object: Further keys and files", key="sim_fold_json"):
            st.text_area(
                "Further keys (JSON)", key="sim_json", height=140, persist_state="session",
                help="Any key of a simulation scenario that has no field here, put on top of the fields.",
            )  # fmt: skip
            st.file_uploader("Open a scenario or a saved run (JSON)", type=["json"], key="sim_open")
            st.button("Put the file into the fields", on_click=_open, disabled=state.get("sim_open") is None)
    found = Inputs(
        texts={f.key: str(state.get(PREFIX + f.key) or "").strip() for f in FIELDS}
        | {"json": str(state.get("sim_json") or "").strip()},
        pool=POOLS[1] if planned else POOLS[0],
        policies=tuple(
            Policy(
                letter=letter,
                **{p: str(state.get(f"{PREFIX}{letter}_{p}") or "").strip() for p in POLICY_PARTS},
            )
            for letter in LETTERS[: _count()]
        ),
        plan=plan,
        trace=_trace(),
    )
    _json_in_link(found)
    return found


def _seed() -> bool:
    """Once a visit (True): fill in the first preset, unless the link holds inputs."""
    state = st.session_state
    if "sim_visit" in state:
        return False
    state["sim_visit"] = True
    given = {key for key in st.query_params if key.startswith(PREFIX)} - {"sim_tab"}
    for key, value in (("sim_pool", POOLS[0]), ("sim_count", "2")):
        if key not in given:
            state[key] = value
    if JSON_LINK in given:
        try:
            state["sim_json"] = unpack(st.query_params[JSON_LINK])
        except CapacityError:
            state[NOTE] = "the further keys in the link are damaged; they were left out"
    if not given:
        start_from(starts()[0])
        texts = from_scenario(starts()[0].scenario) | {"seed": "1"}
        values = {PREFIX + key: text for key, text in texts.items()}
        values |= {
            f"{PREFIX}{p.letter}_{part}": t
            for p in starts()[0].policies
            for part, t in p.texts().items()
            if t
        }
        st.query_params.update(values)
    return True


def _start_bar() -> None:
    by_title = {start.title: start for start in starts()}

    def chosen() -> None:
        start = by_title.get(st.session_state.get("sim_example") or "")
        if start is not None:
            start_from(start)
        st.session_state["sim_example"] = None

    bar = st.container(horizontal=True, gap="small", vertical_alignment="bottom", wrap=False)
    bar.selectbox(
        "Start from an example", list(by_title), index=None, key="sim_example", placeholder="Start from an example",
        label_visibility="collapsed", on_change=chosen,
    )  # fmt: skip
    bar.button(
        "Reset", key="sim_reset", on_click=start_from, args=(starts()[0],), width="content",
        help="Back to the first example; every field is set anew.",
    )  # fmt: skip
    about = next((one.shows for one in starts() if one.key == st.session_state.get("sim_preset_key")), None)
    if about:
        st.caption(about)


def _group(group: str) -> None:
    fields = [field for field in FIELDS if field.group == group]
    for row in sorted({field.row for field in fields}):
        mine = [field for field in fields if field.row == row]
        for place, field in zip(
            st.columns(len(mine), gap="small", vertical_alignment="bottom"), mine, strict=True
        ):
            with place:
                _control(field)


def _control(field: Field) -> None:
    if field.choices:
        st.selectbox(
            field.label, list(field.choices), index=None, key=PREFIX + field.key, help=field.help,
            placeholder=field.placeholder, **KEEP,
        )  # fmt: skip
    else:
        st.text_input(
            field.label, key=PREFIX + field.key, help=field.help, placeholder=field.placeholder, **KEEP
        )


def _policy(letter: str, *, fresh: bool) -> None:
    name = f"{PREFIX}{letter}_"
    texts = {part: _text(f"{letter}_{part}", fresh=fresh) for part in POLICY_PARTS}
    shown = Policy(letter=letter, **texts)
    gate = GATES.get(shown.gate)

    def changed() -> None:
        st.session_state[f"{name}first"] = st.session_state[f"{name}second"] = ""

    with st.expander(
        f":material/shield: **Policy {letter.upper()}** · {shown.name}", key=f"sim_fold_{letter}"
    ):
        st.selectbox(
            "Gate", list(GATES), index=None, key=f"{name}gate",
            placeholder="as in the scenario", on_change=changed,
            help="What refuses requests at the door. " + "; ".join(f"{key}: {gate_.help}" for key, gate_ in GATES.items()) + ".",
            **KEEP,
        )  # fmt: skip
        settings = gate.settings if gate else ()
        if settings:
            for place, part, setting in zip(
                st.columns(len(settings), vertical_alignment="bottom"),
                POLICY_PARTS[1:],
                settings,
                strict=False,
            ):
                place.text_input(setting.label, key=f"{name}{part}", placeholder=setting.default, **KEEP)
        st.text_area(
            "Also change (JSON)", key=f"{name}also", height=80,
            placeholder='{"fleet": {"router": "least_loaded"}}',
            help="Keys of the scenario that this policy changes: preemption_mode, scheduler, fleet, client, "
            "enable_prefix_caching and every other.", **KEEP,
        )  # fmt: skip


def _text(key: str, *, fresh: bool) -> str:
    """A widget's text; on a visit's first run, before the widgets are there, the link's."""
    value = st.session_state.get(PREFIX + key)
    if value is None and fresh:
        value = st.query_params.get(PREFIX + key)
    return str(value or "").strip()


def _count() -> int:
    text = str(st.session_state.get("sim_count") or st.query_params.get("sim_count") or "2")
    return int(text) if text in ("1", "2", "3") else 2


def _summary(group: str, *, fresh: bool) -> str:
    def get(key: str) -> str:
        return _text(key, fresh=fresh)

    if group == "pool":
        return f"{get('num_blocks') or 'no'} blocks of {get('block_size') or 16}"
    if group == "engine":
        replicas = get("replicas") or "1"
        words = [get("rules") or "vllm-v1", f"{replicas} replicas" if replicas != "1" else "1 replica"]
        return ", ".join(words)
    if st.session_state.get(TRACE) is not None:
        return "from a trace"
    process = (get("process") or "poisson").replace("_", " ")
    speed = f"{get('users') or 1} users" if process == "closed loop" else f"{get('rate') or '–'}/s"
    prompt, output = get("prompt"), get("output")
    planned = (_text("pool", fresh=fresh) or POOLS[0]) == POOLS[1]
    if planned and not prompt and not output:
        return f"{process} {speed}, lengths of the plan"
    return f"{process} {speed}, {prompt or '–'} in, {output or '–'} out"


def _trace() -> str | None:
    upload = st.session_state.get(TRACE)
    return None if upload is None else upload.getvalue().decode("utf-8", "replace")


def _open() -> None:
    """A scenario file or this page's own JSON into the fields (a callback)."""
    upload = st.session_state.get("sim_open")
    if upload is None:
        return
    try:
        found = json.loads(upload.getvalue(), object_pairs_hook=unique_keys)
    except CapacityError as error:
        st.session_state[NOTE] = f"the file was not opened: {error}"
        return
    except (ValueError, RecursionError):
        st.session_state[NOTE] = "the file is no JSON; expected a simulation scenario or a run saved here"
        return
    st.session_state[NOTE] = put_file(found)


def put_file(found: Any) -> str | None:
    """Take a file's object into the widgets; a sentence when it is no scenario."""
    runs = found.get("runs") if isinstance(found, dict) else None
    given = (
        [run.get("scenario") for run in runs if isinstance(run, dict)] if isinstance(runs, list) else [found]
    )
    scenarios: list[dict[str, Any]] = [one for one in given if isinstance(one, dict) and one][:3]
    if not scenarios:
        return "the file holds no scenario; expected a JSON object with num_blocks or a model, and a workload"
    base = {key: value for key, value in scenarios[0].items() if key != "admission"}
    policies = []
    for letter, one in zip(LETTERS, scenarios, strict=False):
        change = {key: value for key, value in one.items() if base.get(key) != value}
        policies.append(policy_of(letter, change))
    put(from_scenario(base), tuple(policies), pool=POOLS[0])
    return None


def _json_in_link(found: Inputs) -> None:
    text = found.texts["json"]
    packed = pack(text) if text else None
    if packed is None:
        if JSON_LINK in st.query_params:
            del st.query_params[JSON_LINK]
    elif st.query_params.get(JSON_LINK) != packed:
        st.query_params[JSON_LINK] = packed
