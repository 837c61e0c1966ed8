"""Values of the planner ↔ JSON, each under a schema name such as ``warpplan/graph-1``.

A dataclass becomes an object of its fields, a tuple a list, and a tuple of (name, value) pairs an object. Only a plan
differs: its schedule is an object by operation id. Reading is strict: a field that is missing, unknown, of
another type, NaN or infinite is an :class:`InvalidInput` that names it, because a misspelt cost must not become a
default.
"""

from __future__ import annotations

import hashlib
import json
import math
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints, overload

from warpplan.planner.errors import InvalidInput, MalformedFile
from warpplan.planner.later_fields import is_shown
from warpplan.planner.values.dependence_graph import MOST_OF, DependenceGraph, require_few
from warpplan.planner.values.device import UNITS
from warpplan.planner.values.plan import Optimality, Outcome, Placement, Plan, Schedule
from warpplan.planner.values.profile import Profile
from warpplan.planner.values.timeline import Timeline
from warpplan.planner.values.tuning import TuningConfig

Value = DependenceGraph | Plan | Outcome | Profile | TuningConfig | Timeline
V = TypeVar("V", DependenceGraph, Plan, Outcome, Profile, TuningConfig, Timeline)
Json = dict[str, Any]

SCHEMAS: dict[type, tuple[str, int]] = {
    DependenceGraph: ("graph", 1),
    Plan: ("plan", 1),
    Outcome: ("outcome", 1),
    Profile: ("profile", 1),
    TuningConfig: ("config", 1),
    Timeline: ("timeline", 1),
}
"""Name and version of each value's schema; a reader takes this version only."""


def schema(kind: type) -> str:
    """The schema name of ``kind``, such as ``warpplan/plan-1``."""
    name, version = SCHEMAS[kind]
    return f"warpplan/{name}-{version}"


def to_json(value: Value) -> Json:
    """``value`` as dicts, lists and scalars, ``schema`` first."""
    if isinstance(value, Plan):
        body = _plan_to_json(value)
    elif isinstance(value, Outcome):
        body = _outcome_to_json(value)
    else:
        body = _encode(value, type(value), "")
    return {"schema": schema(type(value)), **body}


@overload
def from_json(data: object) -> Value: ...
@overload
def from_json(data: object, kind: type[V]) -> V: ...
def from_json(data: object, kind: type[Any] | None = None) -> Any:
    """The value that ``data`` describes; :class:`InvalidInput` names the element that cannot be read.

    With ``kind`` given, any other schema is an error too.
    """
    body = dict(_object(data, ""))
    found = _kind(body.pop("schema", None), kind)
    if found is Plan:
        return _plan_from_json(body)
    if found is Outcome:
        return _outcome_from_json(body)
    if found is DependenceGraph:
        _require_few(body)
    if found is DependenceGraph and isinstance(body.get("units"), dict):
        # JSON objects have no order; the graph's own is that of device.UNITS.
        rank = {name: i for i, name in enumerate(UNITS)}
        body["units"] = dict(sorted(body["units"].items(), key=lambda u: (rank.get(u[0], len(rank)), u[0])))
    return _decode(body, found, "")


def loads(text: str | bytes, source: object = "input", kind: type[V] | None = None) -> Any:
    """Parse JSON text into a value; :class:`MalformedFile` names ``source`` and the line where it stops being JSON."""
    try:
        data = json.loads(text, parse_int=_integer, object_pairs_hook=_once)
    except json.JSONDecodeError as error:
        where = f"{error.msg.removesuffix(' at')} at column {error.colno}"
        raise MalformedFile(source, f"not JSON: {where}", line=error.lineno) from None
    except (UnicodeDecodeError, RecursionError, ValueError) as error:
        raise MalformedFile(source, f"not JSON: {str(error).splitlines()[0]}") from None
    try:
        return from_json(data) if kind is None else from_json(data, kind)
    except MalformedFile:
        raise
    except InvalidInput as error:
        raise MalformedFile(source, str(error), field=error.field) from None


def canonical(value: Value) -> bytes:
    """The one byte string of ``value``: sorted keys, no spaces, UTF-8."""
    return json.dumps(
        to_json(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


def key(value: Value) -> str:
    """SHA-256 of :func:`canonical`, in hexadecimal."""
    return hashlib.sha256(canonical(value)).hexdigest()


def _integer(text: str) -> int:
    """Python refuses whole numbers of thousands of digits, in words for programmers."""
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"the number {text[:20]}… has {len(text)} digits") from None


def _once(pairs: list[tuple[str, Any]]) -> Json:
    body = dict(pairs)
    if len(body) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"field {twice!r}{_named(body)} is given twice: give it once")
    return body


def _require_few(body: Json) -> None:
    """Refuse a graph of far too many elements before minutes go into reading them."""
    for name in MOST_OF:
        if isinstance(body.get(name), list | dict):
            require_few(str(body.get("name", "")), name, len(body[name]))


def _kind(name: object, wanted: type | None) -> type:
    known = [schema(kind) for kind in (SCHEMAS if wanted is None else (wanted,))]
    expected = f"expected one of {', '.join(known)}"
    if not isinstance(name, str):
        raise InvalidInput(f"schema is missing: {expected}", field="schema", value=name)
    for kind, (stem, version) in SCHEMAS.items():
        prefix, _, number = name.rpartition("-")
        if prefix != f"warpplan/{stem}" or not number.isdecimal():
            continue
        if int(number) != version:
            age = "newer" if int(number) > version else "older"
            raise InvalidInput(
                f"schema {name!r} is {age} than the {schema(kind)!r} that this version reads: "
                f"{'upgrade warpplan' if age == 'newer' else 'write the file again'}",
                field="schema", value=name, limit=schema(kind),
            )  # fmt: skip
        if wanted not in (None, kind):
            assert wanted is not None
            raise InvalidInput(
                f"schema {name!r} is not the {schema(wanted)!r} expected here",
                field="schema", value=name, limit=schema(wanted),
            )  # fmt: skip
        return kind
    raise InvalidInput(f"unknown schema {name[:60]!r}: {expected}", field="schema", value=name, limit=known)


# Plans: the schedule is an object by operation id, with the ids' order next to it (canonical JSON sorts keys).


def _plan_to_json(plan: Plan) -> Json:
    placements = plan.schedule.placements
    return {
        "graph": plan.graph,
        "ii": plan.schedule.ii_cycles,
        "ops": [p.op for p in placements],
        "schedule": {
            p.op: {"cycle": p.cycle, "stage": p.stage, "phase": p.phase, "partition": p.partition} for p in placements
        },
        **{name: _encode(getattr(plan, name), _hints(Plan)[name], name) for name in _PLAN_LISTS},
        "smem_bytes": plan.smem_bytes,
    }


_PLAN_LISTS = ("partitions", "channels", "buffers", "reuses")


def _plan_from_json(body: Json) -> Plan:
    _only(body, ("graph", "ii", "ops", "schedule", *_PLAN_LISTS, "smem_bytes"), "")
    schedule = _object(_required(body, "schedule", ""), "schedule")
    order = _decode(body.get("ops", list(schedule)), tuple[str, ...], "ops")
    if sorted(order) != sorted(schedule):
        odd = sorted(set(order) ^ set(schedule)) or [op for op in order if order.count(op) > 1]
        raise InvalidInput(
            f"ops and schedule disagree about operation {odd[0]!r}: each must list it once", field="ops", value=odd[0]
        )
    placements = [
        _decode({"op": op, **_object(schedule[op], f"schedule.{op}")}, Placement, f"schedule.{op}") for op in order
    ]
    return Plan(
        graph=_decode(_required(body, "graph", ""), str, "graph"),
        schedule=Schedule(_decode(_required(body, "ii", ""), int, "ii"), tuple(placements)),
        smem_bytes=_decode(_required(body, "smem_bytes", ""), int, "smem_bytes"),
        # Plans written before reuses existed have none.
        **{
            name: _decode(_required({"reuses": [], **body}, name, ""), _hints(Plan)[name], name) for name in _PLAN_LISTS
        },
    )


def _outcome_to_json(outcome: Outcome) -> Json:
    head = {
        "status": outcome.status,
        "ii_lower_bound": outcome.bound,
        "solve_seconds": _finite(float(outcome.seconds), "solve_seconds"),
        "reason": outcome.reason,
    }
    if outcome.optimality is not None:
        head["optimality"] = _encode(outcome.optimality, Optimality, "optimality")
    return head | (_plan_to_json(outcome.plan) if outcome.plan is not None else {})


def _outcome_from_json(body: Json) -> Outcome:
    names = {"status": "status", "ii_lower_bound": "bound", "solve_seconds": "seconds", "reason": "reason"}
    head = {field: _decode(_required(body, name, ""), _hints(Outcome)[field], name) for name, field in names.items()}
    found = body.get("optimality")
    optimality = None if found is None else _decode(found, Optimality, "optimality")
    rest = {name: value for name, value in body.items() if name not in names and name != "optimality"}
    return Outcome(plan=_plan_from_json(rest) if rest else None, optimality=optimality, **head)


# Everything else follows its type.


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _is_pairs(kind: Any) -> bool:
    """Whether ``kind`` is ``tuple[tuple[str, X], ...]``, which JSON writes as an object."""
    args = get_args(kind)
    inner = get_args(args[0]) if len(args) == 2 and args[1] is Ellipsis else ()
    return len(inner) == 2 and inner[0] is str and inner[1] is not Ellipsis


def _encode(value: Any, kind: Any, path: str) -> Any:
    own: Any = type(value)
    if hasattr(own, "__dataclass_fields__"):
        hints = _hints(own)
        held = [(f, getattr(value, f.name)) for f in fields(own)]
        return {f.name: _encode(item, hints[f.name], _join(path, f.name)) for f, item in held if is_shown(f, item)}
    if isinstance(value, tuple):
        inner = get_args(kind)[0]
        if _is_pairs(kind):
            inner = get_args(inner)[1]
            return {name: _encode(item, inner, _join(path, name)) for name, item in value}
        return [_encode(item, inner, f"{path}[{i}]") for i, item in enumerate(value)]
    return _finite(float(value) if kind is float else value, path)


def _finite(value: Any, path: str) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidInput(f"{path} is {value}: expected a finite number", field=path, value=str(value))
    return value


def _decode(value: Any, kind: Any, path: str) -> Any:
    origin = get_origin(kind)
    if is_dataclass(kind):
        return _decode_dataclass(value, kind, path)
    if origin is tuple:
        inner = get_args(kind)[0]
        if _is_pairs(kind):
            inner = get_args(inner)[1]
            pairs = [
                (_text(name, path), _decode(item, inner, _join(path, name)))
                for name, item in _object(value, path).items()
            ]
            return tuple(pairs if path == "units" else sorted(pairs, key=lambda pair: pair[0]))
        if not isinstance(value, list | tuple):
            _wrong(value, "a list", path)
        return tuple(_decode(item, inner, f"{path}[{i}]{_named(item)}") for i, item in enumerate(value))
    if origin is Literal:
        if value not in get_args(kind) or isinstance(value, bool):
            _wrong(value, f"one of {', '.join(map(str, get_args(kind)))}", path)
        return value
    if origin in (Union, types.UnionType):
        return _decode_union(value, get_args(kind), path)
    return _SCALARS[kind](value, path)


def _decode_dataclass(value: Any, kind: Any, path: str) -> Any:
    hints = _hints(kind)
    body = _object(value, path)
    _only(body, hints, path)
    known: dict[str, Any] = {}
    for f in fields(kind):
        if f.name in body:
            known[f.name] = _decode(body[f.name], hints[f.name], _join(path, f.name))
        elif f.default is MISSING and f.default_factory is MISSING:
            _required(body, f.name, path)
    return kind(**known)


def _decode_union(value: Any, options: tuple[Any, ...], path: str) -> Any:
    if value is None and type(None) in options:
        return None
    scalars = {bool: "true or false", int: "a whole number", str: "text", float: "a number"}
    for option in options:
        if option in scalars and type(value) is option:
            return _SCALARS[option](value, path)
    rest = [option for option in options if option is not type(None)]
    if len(rest) == 1:
        return _decode(value, rest[0], path)
    return _wrong(value, " or ".join(scalars[option] for option in rest), path)


def _whole(value: Any, path: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        _wrong(value, "a whole number", path)
    return value


def _number(value: Any, path: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        _wrong(value, "a number", path)
    if not (abs(value) <= 1e300 or isinstance(value, float)):
        _wrong(value, "a number below 1e300", path)
    return float(_finite(value, path))


def _text(value: Any, path: str) -> str:
    if not isinstance(value, str):
        _wrong(value, "text", path)
    if any("\ud800" <= c <= "\udfff" for c in value):
        _wrong(value, "text without halves of characters (surrogates)", path)
    return value


def _flag(value: Any, path: str) -> bool:
    if not isinstance(value, bool):
        _wrong(value, "true or false", path)
    return value


_SCALARS: dict[Any, Callable[[Any, str], Any]] = {int: _whole, float: _number, str: _text, bool: _flag}


def _object(value: Any, path: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        _wrong(value, "an object", path)
    return value


def _required(body: Mapping[str, Any], name: str, path: str) -> Any:
    if name not in body:
        where = _join(path, name)
        raise InvalidInput(f"{where} is missing", field=where)
    return body[name]


def _only(body: Mapping[str, Any], known: Any, path: str) -> None:
    for name in body:
        if name not in known:
            where = _join(path, str(name))
            raise InvalidInput(
                f"unknown field {where}: expected only {', '.join(known)}", field=where, limit=list(known)
            )


def _wrong(value: Any, expected: str, path: str) -> NoReturn:
    shown = repr(value)
    shown = shown if len(shown) <= 60 else shown[:57] + "..."
    raise InvalidInput(f"{path or 'the document'} is {shown}: expected {expected}", field=path or None, value=shown)


def _named(item: Any) -> str:
    """The id of a list's element, so that an error names more than its position."""
    name = item.get("id") if isinstance(item, dict) else None
    return f"({name[:60]})" if isinstance(name, str) and name.isprintable() else ""


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
