"""Planned kernels of the corpus played in numpy: what the lowered kernel computes, beside the kernel as written.

Sizes are made small, with ragged ends where the entry takes them, but such that Triton would specialise the kernel as
it does for the benchmark's: then what is played is the very code that is planned. A few programs of the grid are
played, the first and the last among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from corpus_entry import ELEMENTS, Box, Entry, Problem, Tensor, options, resolved, source

RAGGED = 208
"""A multiple of 16, as the benchmarks' sizes are, and of no block's size."""
LEAST = 192
"""Where an entry takes whole blocks only: three or more of them along the loop, mostly."""
MOST_PROGRAMS = 4
WRONG = ("differs", "fault")
"""What ``computes`` begins with where the lowered kernel is wrong."""
PRINTED = {"bf16": "bf16", "fp16": "f16", "fp32": "f32", "fp8e4nv": "f8E4M3FN"}
"""TTGIR's names of Triton's element types; of whole numbers they are the same, without a sign."""
Row = dict[str, Any]


def printed(dtype: str) -> str:
    """An element type of torch as TTGIR prints it."""
    name = ELEMENTS[dtype]
    return PRINTED.get(name, name.replace("u", "i"))


def small_sizes(entry: Entry, config: Any) -> dict[str, int]:
    """For each size the first wish that leaves the kernel's specialisation as it is; what there is no choice of first,
    for others follow from it: no fewer experts than each token takes."""
    wanted = key(source(entry, entry.problem(), config))
    sizes = dict(entry.sizes)
    for name, choices in sorted(entry.choices.items(), key=lambda item: len(item[1])):
        powers = [1 << bits for bits in range(4, 16) if max(choices) < 1 << bits < sizes[name]]
        for wish in (*wishes(choices), *powers):
            if key(source(entry, entry.problem({**sizes, name: wish}), config)) == wanted:
                sizes[name] = wish
                break
    return sizes


def wishes(choices: Sequence[int]) -> list[int]:
    """Of one size: ragged where odd sizes are among the choices, else the least of some blocks; small counts least."""
    if max(choices) < LEAST:
        return sorted(choices, key=lambda choice: (choice < 2, choice))  # with one batch, no offset would be seen
    ragged = [RAGGED] * any(choice % 16 for choice in choices)
    return [*ragged, *sorted(choices, key=lambda choice: (choice < LEAST, choice))]


def key(made: Any) -> tuple[Any, ...]:
    """What Triton compiles for: types, constants, what is known of numbers."""
    return tuple(made.signature.items()), repr(made.constants), repr(made.attrs)


def filled(tensor: Tensor, draw: np.random.Generator) -> np.ndarray:
    """The bytes of ``tensor``, values as its ``fill`` says, poison between its rows and where a kernel writes."""
    from warpplan.kernels.compiler.inspection.player.tiles.element_types import element_type, encoded, poison, rounded

    kind = element_type(printed(tensor.dtype))
    whole = poison((tensor.shape[0] * tensor.strides[0],), kind)
    view = np.lib.stride_tricks.as_strided(whole, tensor.shape, [s * whole.itemsize for s in tensor.strides])
    if tensor.fill == "values":
        assert tensor.values is not None
        view[...] = np.array(list(tensor.values())).reshape(tensor.shape)
    elif tensor.fill == "integers":
        view[...] = draw.integers(tensor.low, tensor.high, tensor.shape).astype(kind.held)
    elif tensor.fill == "zero":
        view[...] = 0
    elif tensor.fill in ("normal", "uniform"):
        values = draw.standard_normal(tensor.shape) if tensor.fill == "normal" else draw.random(tensor.shape)
        view[...] = rounded(values * tensor.scale, kind)
    return encoded(whole, kind).view(np.uint8)


def inputs(entry: Entry, problem: Problem, constants: Any, seed: int) -> Any:
    """Buffers and arguments of a play."""
    from warpplan.kernels.compiler.inspection.player.played_program import (
        BufferArgument,
        DescribedArgument,
        PlayedInputs,
    )

    draw = np.random.default_rng(seed)
    buffers = {name: filled(tensor, draw) for name, tensor in problem.tensors.items()}
    given, arguments = resolved(problem), []
    for parameter in entry.jit.params:
        value = None if parameter.is_constexpr else given[parameter.name]
        if value is None or (not isinstance(value, float) and value == 1):
            continue  # a constant of the specialisation
        if isinstance(value, Box):
            tensor = problem.tensors[value.tensor]
            element = printed(tensor.dtype)
            arguments.append(DescribedArgument(value.tensor, tensor.shape, tensor.strides, element))
        else:
            arguments.append(BufferArgument(value) if isinstance(value, str) else value)
    return PlayedInputs(buffers, tuple(arguments))


def some(places: list[tuple[int, ...]], most: int) -> list[tuple[int, ...]]:
    """``most`` of the places, evenly spread, the first and the last among them."""
    if len(places) <= most:
        return places
    return [places[i * (len(places) - 1) // (most - 1)] for i in range(most)]


def computes(entry: Entry, index: int, scheme: Any, target: Any, seeds: Sequence[int] = (0, 1, 2)) -> Row:
    """What the kernel planned by ``scheme`` computes, for a row: ``computes`` and the ``played`` sizes."""
    from warpplan.kernels.compiler.inspection.finished import finished_text, written_text
    from warpplan.kernels.compiler.inspection.player import comparison
    from warpplan.kernels.compiler.inspection.player.played_program import play, ready
    from warpplan.kernels.compiler.inspection.player.tiles.faults import KernelFault, NotPlayed
    from warpplan.kernels.compiler.lowering.hopper.persistent import walked_over

    config = entry.configs[index]
    sizes = small_sizes(entry, config)
    problem = entry.problem(sizes)
    made, constants = source(entry, problem, config), entry.constants(problem, config)
    given = inputs(entry, problem, constants, seed=len(entry.name))
    grid = (*problem.grid(constants), 1, 1)[:3]
    total = int(np.prod(grid))
    everywhere = [place[::-1] for place in np.ndindex(*grid[::-1])]
    launched = -(-total // 2) if scheme.walking_programs else None
    if launched is None:
        lowered_places = places = some(everywhere, MOST_PROGRAMS)
    else:
        lowered_places = some([(i, 0, 0) for i in range(launched)], MOST_PROGRAMS // 2)
        places = [everywhere[i] for first, _, _ in lowered_places for i in walked_over(first, launched, total)]
    row: Row = {"played": sizes, "programs": len(places)}
    try:
        code = ready(written_text(made, target, options(config)))
        wanted = play(code, given, grid, places=places)
        lowered = ready(finished_text(made, target, options(config), scheme))
        elements = {name: printed(tensor.dtype) for name, tensor in problem.tensors.items()}
        grain = comparison.coarsest_rounding(code)
        found = [play(lowered, given, grid, seed, launched, lowered_places) for seed in seeds]
        compared = [comparison.compare(wanted.buffers, one.buffers, elements, grain) for one in found]
        worst = max(compared, key=lambda one: (bool(one.differs), not one.equal, one.roundings))
        outputs = [name for name, data in wanted.buffers.items() if not np.array_equal(data, given.buffers[name])]
        if not outputs:
            return {**row, "computes": "not played: nothing is stored at these sizes"}
        return {**row, "computes": str(worst)}
    except NotPlayed as error:
        return {**row, "computes": str(error)}
    except KernelFault as error:
        return {**row, "computes": f"fault: {error}"}
