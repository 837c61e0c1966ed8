"""Structured control flow as values: what ``scf.for``, ``scf.while`` and ``scf.if`` print, taken apart and put together
again."""

from __future__ import annotations

from dataclasses import dataclass

from warpplan.kernels.compiler.ttgir.ir import IrOperation, MalformedIR, Region, is_value, split_list, tokenize


@dataclass
class ForLoop:
    """``scf.for``: ``carried`` are its loop-carried values, (inside, initial, type, result outside) each."""

    variable: str
    lower: str
    upper: str
    step: str
    carried: list[tuple[str, str, str, str]]
    kind: str
    attributes: dict[str, str]
    body: Region
    location: str

    @property
    def yielded(self) -> list[str]:
        """What its body hands to the next iteration."""
        return yielded(self.body)

    def yielded_as(self, result: str) -> str:
        """What the last iteration yields for ``result``."""
        position = next(i for i, (*_, outside) in enumerate(self.carried) if outside == result)
        return self.yielded[position]


def read_loop(operation: IrOperation) -> ForLoop:
    """Take an ``scf.for`` apart. Raises :class:`MalformedIR` for another form than Triton's."""
    tokens = operation.tokens
    variable, equal, lower, to, upper, by, step = tokens[:7]
    if (equal, to, by) != ("=", "to", "step"):
        raise MalformedIR(f"a loop that starts {' '.join(tokens[:7])!r}: expected scf.for", field="ttgir")
    inside, initial, types = [], [], []
    if "iter_args" in tokens:
        start = tokens.index("iter_args") + 2
        end = tokens.index(")", start)
        pairs = [t for t in tokens[start:end] if is_value(t)]
        inside, initial = pairs[::2], pairs[1::2]
        text = "".join(p for p in operation.parts if isinstance(p, str))
        types = split_list(_bracketed(text[text.index("->") + 2 :]))
    regions = operation.regions
    head: list[str] = []
    for part in operation.parts:
        if isinstance(part, Region):
            break
        head.append(part)
    kind = "".join(head).rsplit(":", 1)[1].strip() if ":" in _outside(head) else "i32"
    carried = list(zip(inside, initial, types, operation.defined, strict=True))
    return ForLoop(variable, lower, upper, step, carried, kind, operation.attributes, regions[0], operation.location)


def write_loop(loop: ForLoop, name: str) -> tuple[IrOperation, dict[str, str]]:
    """The operation, its results in a pack called ``name``; and what each former result is now called."""
    carried = loop.carried
    text = f" {loop.variable} = {loop.lower} to {loop.upper} step {loop.step}"
    if carried:
        pairs = ", ".join(f"{inside} = {initial}" for inside, initial, _, _ in carried)
        text += f" iter_args({pairs}) -> ({', '.join(kind for _, _, kind, _ in carried)}) "
    text += f" : {loop.kind} "
    results, renamed = pack(name, [result for _, _, _, result in carried])
    operation = IrOperation("scf.for", results, [*tokenize(text), loop.body], loop.location)
    for key, value in loop.attributes.items():
        operation.set_attribute(key, value)
    return operation, renamed


@dataclass
class WhileLoop:
    """``scf.while``: ``carried`` are (inside ``before``, initial, type) each; ``handed``, what the condition at the end
    of ``before`` hands to the body ``after`` and in the end to what follows, are (inside ``after``, type, result
    outside) each."""

    carried: list[tuple[str, str, str]]
    handed: list[tuple[str, str, str]]
    before: Region
    after: Region
    location: str

    @property
    def condition(self) -> IrOperation:
        """``scf.condition``: whether the body runs, and what is handed on."""
        return self.before.operations[-1]


def read_while(operation: IrOperation) -> WhileLoop:
    """Take an ``scf.while`` apart. Raises :class:`MalformedIR` for another form than Triton's."""
    before, after = operation.regions
    head = "".join(str(part) for part in operation.parts[: operation.parts.index(before)])
    pairs = [token for token in tokenize(head) if is_value(token)]
    inputs, arrow, outputs = head.rpartition(":")[2].partition("->")
    if not arrow or not before.operations or before.operations[-1].name != "scf.condition":
        raise MalformedIR(f"a loop that starts {head[:60]!r}: expected scf.while", field="ttgir")
    carried = list(zip(pairs[::2], pairs[1::2], split_list(_bracketed(inputs)), strict=True))
    labelled = [token for token in tokenize(after.label) if is_value(token)]
    handed = list(zip(labelled, split_list(_bracketed(outputs)), operation.defined, strict=True))
    return WhileLoop(carried, handed, before, after, operation.location)


def write_while(loop: WhileLoop, name: str) -> tuple[IrOperation, dict[str, str]]:
    """The operation, its results in a pack called ``name``; and what each former result is now called."""
    pairs = ", ".join(f"{inside} = {initial}" for inside, initial, _ in loop.carried)
    inputs, outputs = (", ".join(kinds) for kinds in ([c[2] for c in loop.carried], [h[1] for h in loop.handed]))
    text = f" ({pairs})" if pairs else ""
    text += f" : ({inputs}) -> ({outputs}) "
    arguments = ", ".join(f"{inside}: {kind} loc(unknown)" for inside, kind, _ in loop.handed)
    after = Region(loop.after.operations, f"^bb0({arguments}):" if arguments else "")
    results, renamed = pack(name, [result for *_, result in loop.handed])
    parts: list[str | Region] = [*tokenize(text), loop.before, " ", "do", " ", after]
    return IrOperation("scf.while", results, parts, loop.location), renamed


@dataclass
class Branch:
    """``scf.if``: ``results`` are (type, result outside); ``otherwise`` is empty where nothing is printed."""

    condition: str
    results: list[tuple[str, str]]
    then: Region
    otherwise: Region
    attributes: dict[str, str]
    location: str


def read_branch(operation: IrOperation) -> Branch:
    """Take an ``scf.if`` apart."""
    condition = operation.tokens[0]
    types: list[str] = []
    head = "".join(p for p in operation.parts if isinstance(p, str))
    if "->" in head:
        types = split_list(_bracketed(head[head.index("->") + 2 :]))
    regions = operation.regions
    otherwise = regions[1] if len(regions) > 1 else Region()
    results = list(zip(types, operation.defined, strict=True))
    return Branch(condition, results, regions[0], otherwise, operation.attributes, operation.location)


def write_branch(branch: Branch, name: str) -> tuple[IrOperation, dict[str, str]]:
    """The operation, its results in a pack called ``name``; and what each former result is now called."""
    text = f" {branch.condition} "
    if branch.results:
        text += f"-> ({', '.join(kind for kind, _ in branch.results)}) "
    results, renamed = pack(name, [result for _, result in branch.results])
    parts: list[str | Region] = [*tokenize(text), branch.then]
    if branch.otherwise.operations:
        parts += [" ", "else", " ", branch.otherwise]
    operation = IrOperation("scf.if", results, parts, branch.location)
    for key, value in branch.attributes.items():
        operation.set_attribute(key, value)
    return operation, renamed


def pack(name: str, former: list[str]) -> tuple[tuple[str, ...], dict[str, str]]:
    """How a pack of results called ``name`` is defined, and the new name of each ``former`` one."""
    if not former:
        return (), {}
    if len(former) == 1:
        return (name,), {former[0]: name}
    return (f"{name}:{len(former)}",), {old: f"{name}#{i}" for i, old in enumerate(former)}


def yielded(region: Region) -> list[str]:
    """The operands of the region's terminator."""
    if not region.operations:
        return []
    return region.operations[-1].operands


def yield_of(values: list[tuple[str, str]], location: str) -> IrOperation:
    """``scf.yield`` of (value, type) pairs."""
    text = ""
    if values:
        text = f" {', '.join(v for v, _ in values)} : {', '.join(t for _, t in values)}"
    return IrOperation("scf.yield", (), list(tokenize(text)), location)


def handed(last: IrOperation) -> list[tuple[str, str]]:
    """What the terminator ``last``, a ``scf.yield`` or ``scf.condition``, hands on: (value, type) pairs."""
    values = last.operands[1:] if last.name == "scf.condition" else last.operands
    return list(zip(values, split_list(last.signature), strict=True)) if values else []


def handing(last: IrOperation, values: list[tuple[str, str]]) -> IrOperation:
    """The terminator ``last`` with other ``values`` to hand on."""
    new = yield_of(values, last.location)
    if last.name == "scf.condition":
        new = IrOperation(last.name, (), [*tokenize(f"({last.operands[0]})"), *new.parts], last.location)
    return new


def _bracketed(text: str) -> str:
    """What the first pair of round brackets of ``text`` holds, or its first type where there is none."""
    text = text.strip()
    if not text.startswith("("):
        return text.split("{")[0].strip()
    depth = 0
    for i, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return text[1:i]
    raise MalformedIR(f"brackets that do not close in {text[:60]!r}", field="ttgir")


def _outside(tokens: list[str]) -> list[str]:
    """``tokens`` outside of every bracket."""
    depth, kept = 0, []
    for token in tokens:
        depth += (token in "([{<") - (token in ")]}>")
        if depth == 0:
            kept.append(token)
    return kept
