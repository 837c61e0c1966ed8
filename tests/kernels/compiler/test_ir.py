"""Any module of the grammar prints, parses and prints the same; any other text is refused with :class:`MalformedIR`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpplan.kernels.compiler.ttgir import ir, parsing
from warpplan.kernels.compiler.ttgir.ir import IrOperation, MalformedIR, Module, Region

VALUES = st.sampled_from(["%a", "%acc_12", "%arg3", "%0", "%x-y", "%pack"])
LOCATIONS = st.sampled_from(
    ["#loc", "#loc12", "unknown", '"f(x).py":3:4', "callsite(#loc2 at #loc3)", '"a \\" b"(#loc1)']
)
NAMES = st.sampled_from(["arith.addi", "tt.func", "scf.for", "ttng.tc_gen5_mma", '"tt.reduce"', "partition0"])
# What stands between an operation's name and its location, each piece a whole number of tokens.
PIECES = st.sampled_from(
    [
        "%a, %b#1", "dense<0.000000e+00>", "-1", "1.5e-3", "0x7F80", "@f", "#ttg.blocked<{order = [1, 0]}>",
        "(%a: i32 loc(#loc), %b: i32 loc(unknown))", "{tt.divisibility = 16 : i32}", '{"ttg.num-warps" = 4, unit}',
        "<{operandSegmentSizes = array<i32: 1, 1>}>", '"a { string"', ": tensor<128x64xbf16, #shared> -> i1", "->", "=",
        "iter_args(%x = %y) -> (i32)", ":", "attributes {noinline = false}", "else",
    ]
)  # fmt: skip
JUNK = st.sampled_from(["{", "}", "{\n", "loc", "loc(", ")", "%", "%x:", '"', "^bb0", "\n", ":", "=", "é", "\0"])
BLANKS = st.sampled_from([" ", "  ", ""])


@st.composite
def operations(draw: st.DrawFn, depth: int = 3) -> IrOperation:
    results = draw(st.lists(VALUES, max_size=2))
    if len(results) == 1 and draw(st.booleans()):
        results = [f"{results[0]}:{draw(st.integers(1, 12))}"]
    parts: list[str | Region] = []
    for _ in range(draw(st.integers(0, 4))):
        parts.append(" ")
        if depth and draw(st.integers(0, 3)) == 0:
            label = draw(st.sampled_from(["", "^bb0(%z: i32 loc(#loc)):", "^bb0:"]))
            parts.append(Region(draw(st.lists(operations(depth - 1), max_size=3)), label))
        else:
            parts += ir.tokenize(draw(PIECES) + draw(BLANKS))
    while parts and isinstance(parts[-1], str) and parts[-1].isspace():
        parts.pop()
    return IrOperation(draw(NAMES), tuple(results), parts, draw(LOCATIONS))


@st.composite
def modules(draw: st.DrawFn) -> Module:
    body = Region(draw(st.lists(operations(), max_size=3)))
    top = IrOperation(
        "module", (), [" ", "attributes", " ", *ir.tokenize('{ttg.target = "cuda:90"}'), " ", body], "#loc"
    )
    aliases = draw(st.lists(st.sampled_from(["#blocked = #ttg.blocked<{order = [0]}>", '#loc1 = loc("a.py":1:2)'])))
    return Module(aliases, top, draw(st.lists(st.just("#loc2 = loc(unknown)"), max_size=2)))


def joined(operation: IrOperation) -> IrOperation:
    """``operation`` with neighbouring tokens put together: how they were cut is not part of what was printed."""
    parts: list[str | Region] = []
    for part in operation.parts:
        if isinstance(part, Region):
            parts.append(Region([joined(inner) for inner in part.operations], part.label))
        elif parts and isinstance(parts[-1], str):
            parts[-1] += part
        else:
            parts.append(part)
    return IrOperation(operation.name, operation.results, parts, operation.location)


@given(modules())
def test_what_is_printed_parses_to_the_same(module: Module) -> None:
    text = str(module)
    again = parsing.parse(text)
    assert str(again) == text
    assert joined(again.operation) == joined(module.operation)
    assert (again.aliases, again.locations) == (module.aliases, module.locations)


@given(
    operations(depth=0),
    st.sampled_from(["loop.stage", "tt.warp_specialize", "ttg.num-warps"]),
    st.sampled_from(["", "3 : i32"]),
)
def test_an_attribute_set_is_there_and_dropped_is_gone(operation: IrOperation, name: str, value: str) -> None:
    before = operation.attributes
    operation.set_attribute(name, value)
    assert operation.attributes == {**before, name: value}
    again = parsing.parse_operation(operation.text())
    assert again.attributes == operation.attributes
    operation.drop_attribute(name)
    assert operation.attributes == {n: v for n, v in before.items() if n != name}


def read_everything(text: str) -> None:
    """Parse and touch all that is derived; a text that parses prints to one that parses to the same."""
    module = parsing.parse(text)
    for operation in module.walk():
        _ = operation.tokens, operation.operands, operation.defined, operation.signature, operation.attributes
        _ = [ir.tokenize(region.label) for region in operation.regions]
    assert str(parsing.parse(str(module))) == str(module)
    _ = module.function


@given(modules(), st.data())
def test_mutated_text_is_read_or_refused(module: Module, data: st.DataObject) -> None:
    tokens = ir.tokenize(str(module))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(tokens) - 1))
        other = tokens[data.draw(st.integers(0, len(tokens) - 1))]
        junk = data.draw(JUNK)
        tokens[at : at + 1] = data.draw(st.sampled_from([[], [junk], [other, tokens[at]], [tokens[at], junk]]))
        if not tokens:
            break
    refuse_or_read("".join(tokens))


@given(st.text(max_size=80) | st.text(alphabet='module {}()<>[]%^:=,"\n#l.o1', max_size=60).map("module {\n".__add__))
def test_any_text_is_read_or_refused(text: str) -> None:
    refuse_or_read(text)


def refuse_or_read(text: str) -> None:
    try:
        read_everything(text)
    except MalformedIR as refused:
        assert "\n" not in str(refused)  # noqa: PT017 - reading it is as good


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no module"),
        ("module {\n  a.b", "line 2 .*ends inside"),
        ("module {\n  %x, = a.b loc(#l)\n} loc(#l)", "line 2 .*expected '=' after %x"),
        ("module {\n  %x:n = a.b loc(#l)\n} loc(#l)", "line 2 .*how many results %x"),
        ("module {\n  a.b %x) loc(#l)\n} loc(#l)", r"line 2 .*'\)' closes nothing in a.b"),
        ("module {\n  7 = a.b loc(#l)\n} loc(#l)", "line 2 .*an operation's name, not '7'"),
        (
            "module {\n  f {\n  ^bb0:\n  a.b loc(#l)\n  ^bb1:\n  } loc(#l)\n} loc(#l)",
            "line 6 .*several blocks.*a block that ends in a.b",
        ),
        ("module {\n} loc(#l)\n#loc = loc(unknown)\nmodule {\n} loc(#l)", "line 3 .*text after the module"),
        ("module {\n" + "f {\n" * 5000 + "}\n" * 5001, "more than 100 regions"),
        ("module {\n} loc(#l)", "no public tt.func"),
        ("module loc(#l)", "no public tt.func"),
    ],
)
def test_a_refusal_says_where_and_what(text: str, says: str) -> None:
    with pytest.raises(MalformedIR, match=says):
        read_everything(text)


def in_blocks(*blocks: str) -> str:
    lines = "\n".join(f"{line} loc(#l)" if not line.startswith("^") else line for line in blocks)
    return f"module {{\ntt.func public @f() {{\n{lines}\n}} loc(#l)\n}} loc(#l)"


def test_ways_that_end_by_themselves_are_branches() -> None:
    text = in_blocks(
        "cf.cond_br %a, ^bb1, ^bb2", "^bb1:  // pred: ^bb0", "cf.br ^bb3", "^bb2:  // pred: ^bb0", "x.y",
        "cf.cond_br %b, ^bb4, ^bb4", "^bb3:  // pred: ^bb1", "x.z", "tt.return", "^bb4:  // 2 preds: ^bb2, ^bb2",
        "tt.return",
    )  # fmt: skip
    branch, last = parsing.parse(text).function.regions[0].operations
    assert (branch.name, branch.tokens[0], last.name) == ("scf.if", "%a", "tt.return")
    assert [[operation.name for operation in region.operations] for region in branch.regions] == [
        ["x.z"], ["x.y", "scf.if"]
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("blocks", "says"),
    [
        (("cf.cond_br %a, ^bb1, ^bb2", "^bb1:", "cf.br ^bb2", "^bb2:", "x.y", "tt.return"), r"meet in \^bb2"),
        (("cf.br ^bb1", "^bb1:", "cf.cond_br %a, ^bb1, ^bb2", "^bb2:", "tt.return"), r"meet in \^bb1"),
        (("cf.br ^bb1(%a)", "^bb1(%b: i32 loc(#l)):", "tt.return"), "a block with arguments"),
        (("cf.cond_br %a, ^bb1, ^bb7", "^bb1:", "tt.return"), "ends in cf.cond_br"),
        (("cf.br ^bb1", "^bb1:", "tt.return %a"), "ends in tt.return"),
    ],
)
def test_ways_that_meet_or_go_round_are_refused(blocks: tuple[str, ...], says: str) -> None:
    with pytest.raises(MalformedIR, match=f"several blocks in one region: .*{says}"):
        parsing.parse(in_blocks(*blocks))


def test_an_alias_is_reused_or_new() -> None:
    module = parsing.parse("#shared = #ttg.a<1>\nmodule {\n} loc(#l)")
    assert module.alias("#ttg.a<1>") == "#shared"
    assert module.alias("#ttg.a<2>") == "#shared1"
    assert module.alias("#ttg.a<2>") == "#shared1"
    assert str(module).startswith("#shared = #ttg.a<1>\n#shared1 = #ttg.a<2>\nmodule {")
