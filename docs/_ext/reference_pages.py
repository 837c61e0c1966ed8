"""The reference pages that follow from the code: the Typer commands, the OpenAPI document, the files' schemas."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, get_args

JsonObject = Mapping[str, Any]


def command_line() -> str:
    """Every command with its arguments and options, as ``warpplan COMMAND --help`` has them."""
    import typer.main

    from warpplan.service.cli.app import app

    commands: Mapping[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    return "\n\n".join(_command(name, command) for name, command in commands.items())


def http_routes() -> str:
    """Every route of the OpenAPI document: what it takes and answers, then the bodies by name."""
    document = _openapi()
    parts = [
        _route(method.upper(), path, route)
        for path, methods in document["paths"].items()
        for method, route in methods.items()
    ]
    parts.append("## Bodies")
    parts += [_body(name, schema) for name, schema in sorted(document["components"]["schemas"].items())]
    return "\n\n".join(parts)


def file_schemas() -> str:
    """The values that files hold: each schema's fields, and those of the values inside of it."""
    from warpplan.planner.values import codec

    parts = []
    for kind in codec.SCHEMAS:
        parts.append(f"## `{codec.schema(kind)}`\n\n{_docstring(kind)}")
        parts.append(_field_table(kind))
        for inner in _inner(kind):
            parts.append(f"### {inner.__name__} in `{codec.schema(kind)}`\n\n{_docstring(inner)}")
            parts.append(_field_table(inner))
    return "\n\n".join(parts)


def _openapi() -> JsonObject:
    from warpplan.service.http.app import create_app
    from warpplan.service.workflow.configure import Workflow

    document: JsonObject = create_app(Workflow()).openapi()
    return document


def _command(name: str, command: Any) -> str:
    arguments = [p for p in command.params if not p.opts[0].startswith("-")]
    options = [p for p in command.params if p.opts[0].startswith("-")]
    usage = [p.metavar or p.name for p in arguments]
    usage += [f"{p.opts[0]} {_value_name(p)}" for p in options if p.required]
    parts = [f"## warpplan {name}", _paragraphs(command.help or "")]
    parts.append(f"```text\nwarpplan {' '.join([name, *usage, '[OPTIONS]'])}\n```")
    rows = ["| | default | |", "|---|---|---|"]
    rows += [f"| {_names(p)} | {_default(p)} | {_described(p)} |" for p in (*arguments, *options)]
    parts.append("\n".join(rows))
    return "\n\n".join(parts)


def _names(parameter: Any) -> str:
    names = [*parameter.opts, *parameter.secondary_opts]
    if not names[0].startswith("-"):
        return f"`{(parameter.metavar or parameter.name).strip('[]').replace('|', ' ')}`"
    return ", ".join(f"`{name}`" for name in names)


def _value_name(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    default = parameter.default
    return "" if default in (None, False, (), []) or callable(default) else f"`{default}`"


def _described(parameter: Any) -> str:
    low, high = getattr(parameter, "min", None), getattr(parameter, "max", None)
    limits = {
        (False, False): f" From {low} to {high}.",
        (False, True): f" At least {low}.",
        (True, False): f" At most {high}.",
        (True, True): "",
    }[low is None, high is None]
    variable = f" Environment variable `{parameter.envvar}`." if parameter.envvar else ""
    return _cell(f"{parameter.help or ''}{limits}{variable}")


def _route(method: str, path: str, route: JsonObject) -> str:
    parts = [f"## {method} `{path}`", _paragraphs(route.get("description") or f"{route.get('summary', '')}.")]
    parameters = [p for p in route.get("parameters", ()) if not p["name"].startswith("if-")]
    if parameters:
        rows = ["| parameter | in | type | |", "|---|---|---|---|"]
        rows += [_parameter(parameter) for parameter in parameters]
        parts.append("\n".join(rows))
    for media, content in route.get("requestBody", {}).get("content", {}).items():
        parts.append(f"Takes `{media}`: {_type(content.get('schema', {}))}.")
    rows = ["| status | body |", "|---|---|"]
    rows += [f"| {status} | {_answer(answer)} |" for status, answer in sorted(route["responses"].items())]
    parts.append("\n".join(rows))
    return "\n\n".join(parts)


def _parameter(parameter: JsonObject) -> str:
    kind = f"{_type(parameter['schema'])}{_given(parameter['schema'])}"
    return f"| `{parameter['name']}` | {parameter['in']} | {kind} | {_cell(parameter.get('description', ''))} |"


def _answer(response: JsonObject) -> str:
    contents = [
        f"{_type(content.get('schema', {}))} as `{media}`" for media, content in response.get("content", {}).items()
    ]
    return "; ".join(contents) or _cell(response.get("description", ""))


def _body(name: str, schema: JsonObject) -> str:
    parts = [f"(body-{name.lower()})=\n### {name}", _paragraphs(schema.get("description", ""))]
    required = set(schema.get("required", ()))
    properties: JsonObject = schema.get("properties", {})
    if properties:
        rows = ["| field | type | |", "|---|---|---|"]
        rows += [
            f"| `{field}` | {_type(kind)}{_given(kind) if field not in required else ''} | "
            f"{_cell(kind.get('description', ''))} |"
            for field, kind in properties.items()
        ]
        parts.append("\n".join(rows))
    return "\n\n".join(part for part in parts if part)


def _type(schema: JsonObject) -> str:
    """A JSON schema in words; names of bodies are links."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[-1]
        return f"[{name}](#body-{name.lower()})"
    if "anyOf" in schema or "oneOf" in schema:
        return " or ".join(_type(option) for option in schema.get("anyOf") or schema["oneOf"])
    if "const" in schema or "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if schema.get("type") == "object" and isinstance(schema.get("additionalProperties"), Mapping):
        return f"object of {_type(schema['additionalProperties'])}"
    return str(schema.get("type", "any"))


def _given(schema: JsonObject) -> str:
    default = schema.get("default")
    return "" if default is None else f", `{default}` if not given"


def _inner(kind: type) -> Iterator[type]:
    """The dataclasses that fields of ``kind`` hold, and theirs, each once, in order."""
    seen: list[type] = []

    def visit(outer: type) -> None:
        for hint in inspect.get_annotations(outer, eval_str=True).values():
            for inner in _dataclasses(hint):
                if inner not in seen and inner is not kind:
                    seen.append(inner)
                    visit(inner)

    visit(kind)
    return iter(seen)


def _dataclasses(hint: Any) -> Iterator[type]:
    if isinstance(hint, type) and hasattr(hint, "__dataclass_fields__"):
        yield hint
    for part in get_args(hint):
        yield from _dataclasses(part)


def _field_table(kind: type) -> str:
    rows = ["| field | type | default |", "|---|---|---|"]
    rows += [f"| `{f.name}` | `{_cell(str(f.type))}` | {_field_default(f)} |" for f in fields(kind)]
    return "\n".join(rows)


def _field_default(field: Field[Any]) -> str:
    default = field.default
    if default is MISSING:
        return "" if field.default_factory is MISSING else "empty"
    if is_dataclass(default):
        return "its own defaults"
    if isinstance(default, tuple) and default and isinstance(default[0], tuple):
        return ", ".join(" ".join(str(part) for part in pair) for pair in default)
    return f"`{default!r}`"


def _docstring(kind: type) -> str:
    return _paragraphs(inspect.getdoc(kind) or "")


def _paragraphs(text: str) -> str:
    """Text of a docstring: its paragraphs, each on one line, without Sphinx's roles."""
    plain = re.sub(r":[a-z]+:`~?([^`]*)`", r"`\1`", inspect.cleandoc(text))
    return "\n\n".join(" ".join(part.split()) for part in plain.split("\n\n"))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
