"""What is promised of a tile, shortened: true of every part of the tile, and of the tile's rank."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from warpplan.kernels.compiler.ttgir.axis_hints import shorten_hints
from warpplan.kernels.compiler.ttgir.ir import IrOperation
from warpplan.kernels.compiler.ttgir.parsing import parse_operation

POWERS = st.sampled_from([1, 2, 8, 16, 64, 128, 256])


def hinted(**hints: str) -> IrOperation:
    text = ", ".join(f"tt.{name} = {value}" for name, value in hints.items())
    return parse_operation(f"%x = arith.addi %a, %b {{{text}}} : tensor<128x64xi32, #blocked>")


def numbers(operation: IrOperation, name: str) -> list[int]:
    inside, _, kind = operation.attributes[f"tt.{name}"].removeprefix("dense<[").partition("]>")
    found = [int(number) for number in inside.split(",")]
    assert kind == f" : tensor<{len(found)}xi32>"
    return found


@given(contiguity=POWERS, divisibility=POWERS, size=st.sampled_from([16, 32, 64]), starts=st.lists(
    st.integers(0, 1000), min_size=128, max_size=128))  # fmt: skip
def test_each_part_of_a_tile_keeps_the_promise(
    contiguity: int, divisibility: int, size: int, starts: list[int]
) -> None:
    run = min(contiguity, 128)
    values = [starts[i // run] * divisibility + i % run for i in range(128)]
    operation = hinted(
        contiguity=f"dense<[{contiguity}, 4]> : tensor<2xi32>", divisibility=f"dense<{divisibility}> : tensor<2xi32>"
    )
    shorten_hints(operation, 0, size)
    (run, other), (divisor, whole) = numbers(operation, "contiguity"), numbers(operation, "divisibility")
    assert (other, whole) == (4, divisibility)
    for first in range(0, 128, size):
        part = values[first : first + size]
        for at in range(0, size, run):
            assert part[at] % divisor == 0
            assert part[at : at + run] == list(range(part[at], part[at] + run))


def test_what_promises_nothing_is_left_alone() -> None:
    operation = parse_operation("%x = arith.addi %a, %b {other = 1 : i32} : tensor<128xi32, #blocked>")
    text = operation.text()
    shorten_hints(operation, 0, 64)
    assert operation.text() == text
