"""What ``warpplan tune`` does: every configuration of somebody's kernel predicted for a shape, without a partition.

Each configuration is captured at the cut as Triton compiles it for the GPU, its programs are run on paper for their
loops' lengths and the tiles that they share, and the launch is priced. What then ranks first is assembled, for ptxas
alone knows what spills and whether it serialises wgmma. Needs Triton, no GPU.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from warpplan.kernels.compiler.costing.pipelined.assembled_first import as_assembled, assembled_first
from warpplan.kernels.compiler.costing.pipelined.kernel_facts import KernelFacts, facts_of
from warpplan.kernels.compiler.costing.pipelined.launch_time import LaunchFacts, LaunchModel, LaunchTime
from warpplan.kernels.compiler.costing.pipelined.launch_traffic import (
    LaunchMemory,
    LaunchTiles,
    launch_tiles,
    neighbour_loads,
    round_of,
    run_slowdown,
)
from warpplan.kernels.compiler.paper.paper_programs import PaperKernel
from warpplan.planner.errors import InvalidConfig, InvalidInput, WarpplanError
from warpplan.planner.values.device import Device
from warpplan.planner.values.profile import Profile
from warpplan.planner.values.tuning import TuningConfig
from warpplan.service.feeds.consumer_kernel import find
from warpplan.service.store.tuned.kernel_answer_store import KernelAnswer
from warpplan.service.tuning.derived_values import Heuristic, argument_of, derived
from warpplan.service.tuning.size_formulas import evaluate, number_of

if TYPE_CHECKING:
    from warpplan.kernels.compile import CompiledReport

HOPPER = 90
SMS = "NUM_SMS"
"""The name that a grid may use for the device's SMs."""
MOST_PROGRAMS = (2**31 - 1, 65_535, 65_535)
"""Programs along each axis of a launch (CUDA C++ Programming Guide, "Compute Capabilities")."""
_POINTER = re.compile(r"(\*\w+)\s*\[(.+)\](\s*:\s*\d+)?")
"""A pointer with its elements: ``*bf16[M * K]``, or ``*bf16[M * K]:1`` where it is not aligned."""
_BARE = r"\1\3"
_DESCRIPTOR = re.compile(r"(\w+)\s*\[(.+)\]")
"""A descriptor made on the host, with its box in numbers or the names of a configuration's constants."""


@dataclass(frozen=True)
class TuningTask:
    """A kernel and what it is launched with. ``signature`` gives the parameters that neither a configuration nor a
    shape does, as ``warpplan ws`` takes them; values may be expressions of the shape's sizes, and a pointer may say how
    many elements lie behind it, ``a_ptr=*bf16[M * K]``: measuring needs that, and no more of them count as looked up.
    ``grid`` is up to three expressions of sizes and a configuration's constants, separated by commas outside of
    brackets. ``heuristics`` are those of the kernel's ``@triton.heuristics``, the outermost first."""

    spec: str
    signature: str
    grid: str
    configs: tuple[TuningConfig, ...]
    heuristics: tuple[Heuristic, ...] = ()


@dataclass(frozen=True)
class TunedConfig:
    """``time`` as predicted; ``traffic_known`` whether every address was, or some are looked up in memory and told
    apart by where; ``trips_known`` whether every loop's length was, or a number stood for it."""

    config: TuningConfig
    time: LaunchTime
    programs: int
    dram_bytes: float
    traffic_known: bool
    trips_known: bool = True


@dataclass(frozen=True)
class _Candidate:
    """``model`` prices ``launch``, what of it the assembler knows estimated or, once it is assembled, as it is.
    ``paper`` runs its programs, which are launched over ``grid`` with ``sizes`` and arrays of ``elements``."""

    config: TuningConfig
    signature: str
    paper: PaperKernel
    sizes: Mapping[str, int]
    elements: Mapping[str, int]
    grid: tuple[int, int, int]
    model: LaunchModel
    launch: LaunchFacts
    different_bytes: float

    @cached_property
    def resident(self) -> int:
        """Programs on an SM at a time."""
        return self.model.resident(self.launch)

    @property
    def at_once(self) -> int:
        """Programs on the device at a time."""
        return self.resident * self.model.device.sm_count

    @cached_property
    def tiles(self) -> LaunchTiles:
        return launch_tiles(self.paper, self.sizes, self.grid, self.model.device, self.at_once, self.elements)

    @property
    def memory(self) -> LaunchMemory:
        """What the launch moves, as many programs at once as the SMs hold."""
        return self.tiles.memory(self.model.device, self.at_once)

    @cached_property
    def tuned(self) -> TunedConfig:
        memory = self.memory
        cold = min(1.0, memory.dram_loaded_bytes / memory.loaded_bytes) if memory.loaded_bytes else 1.0
        slowdown = run_slowdown(self.model.facts, memory.trips)
        dram_bytes = memory.dram_bytes + (slowdown - 1.0) * memory.dram_loaded_bytes
        time = self.model.time(replace(self.launch, trips=memory.trips, dram_bytes=dram_bytes, cold=cold))
        return TunedConfig(self.config, time, int(self.launch.blocks), dram_bytes, memory.known, memory.counted)

    @property
    def place(self) -> tuple[float, int, float]:
        """Of equals the one with fewer warps is first (it is faster in benchmarks/results/compiler_schemes_h200.json),
        then the one whose neighbours share more (the training rows of ``consumers_h100.json``)."""
        return round(self.tuned.time.time_us, 3), self.config.num_warps, self.different_bytes


@dataclass(frozen=True)
class TunedShape:
    """``ranked`` best first; ``refused`` are configurations that do not compile or do not fit, with the reason.
    ``missing`` are costs that no profile point stood for."""

    shape: dict[str, int]
    ranked: tuple[TunedConfig, ...]
    refused: tuple[tuple[TuningConfig, str], ...]
    missing: tuple[str, ...]


def listed_configs(spec: str) -> tuple[TuningConfig, ...]:
    """The list that the kernel's own ``@triton.autotune`` has; empty without one. Importing it runs its module."""
    found = find(spec)
    while not hasattr(found, "params"):
        if hasattr(found, "configs"):
            return tuple(
                TuningConfig(tuple(c.kwargs.items()), c.num_warps, c.num_stages, c.num_ctas, c.maxnreg)
                for c in found.configs
            )
        if not hasattr(found, "fn"):
            break
        found = found.fn
    return ()


class Tuner:
    """One task over several shapes: a configuration is captured once for all that specialise alike."""

    def __init__(self, task: TuningTask, kernel: Any, profile: Profile, device: Device) -> None:
        self.task, self.kernel, self.profile, self.device = task, kernel, profile, device
        self._captured: dict[tuple[str, int, int], tuple[KernelFacts, Any] | str] = {}
        self._reports: dict[tuple[object, ...], CompiledReport | str] = {}

    def rank(self, shape: Mapping[str, int]) -> TunedShape:
        """Every configuration for ``shape``. Raises :class:`InvalidInput` for a signature, grid or shape that does not
        fit the kernel."""
        candidates: list[_Candidate] = []
        refused: list[tuple[TuningConfig, str]] = []
        for config in self.task.configs:
            found = self._candidate(shape, config)
            if isinstance(found, str):
                refused.append((config, found))
            else:
                candidates.append(found)
        missing = {kind for candidate in candidates for kind in candidate.model.price.missing}
        placed, unfit = assembled_first(candidates, lambda candidate: candidate.place, self._assemble)
        refused += [(candidate.config, reason) for candidate, reason in unfit]
        ranked = tuple(candidate.tuned for candidate in placed)
        return TunedShape(dict(shape), ranked, tuple(refused), tuple(sorted(missing)))

    def grid(self, shape: Mapping[str, int], config: TuningConfig) -> tuple[int, int, int]:
        """The launch's programs along each axis."""
        own = {**self._derived(shape, config), **dict(config.kwargs)}
        names = {SMS: self.device.sm_count, **_whole(own), **shape}
        sizes = [evaluate(part, names, "grid") for part in _split(self.task.grid)]
        if not 1 <= len(sizes) <= 3 or any(size < 1 for size in sizes):
            raise InvalidInput(
                f"grid {self.task.grid!r} is {tuple(sizes)}: expected one to three sizes from 1 on", field="grid",
                value=self.task.grid,
            )  # fmt: skip
        for axis, size, most in zip("xyz", sizes, MOST_PROGRAMS, strict=False):
            if size > most:
                raise InvalidInput(
                    f"grid {self.task.grid!r} has {size} programs along {axis}: CUDA launches at most {most}",
                    field="grid", value=self.task.grid, limit=most,
                )  # fmt: skip
        x, y, z = (*sizes, 1, 1)[:3]
        return x, y, z

    def _candidate(self, shape: Mapping[str, int], config: TuningConfig) -> _Candidate | str:
        text, sizes = self.arguments(shape, config)
        grid = self.grid(shape, config)
        captured = self._capture(text, config)
        if isinstance(captured, str):
            return captured
        facts, paper = captured
        model = LaunchModel(facts, self.profile, self.device)
        loads = neighbour_loads(paper, sizes, grid)
        trips = (0.0,) * len(facts.loops)
        launch = LaunchFacts(float(math.prod(grid)), trips, config.num_stages, distinct_share=loads.distinct_share)
        candidate = _Candidate(
            config, text, paper, sizes, self.elements(shape), grid, model, launch, loads.different_bytes
        )  # fmt: skip
        return candidate if candidate.resident else self._too_large

    def _assemble(self, candidate: _Candidate) -> _Candidate | str:
        """``candidate`` with what ptxas makes of it; why it cannot run."""
        config = candidate.config
        key = (candidate.signature, config.num_warps, config.num_ctas, config.num_stages, config.maxnreg)
        if key not in self._reports:
            self._reports[key] = self._report(candidate)
        report = self._reports[key]
        if isinstance(report, str):
            return report
        assembled = replace(candidate, launch=as_assembled(candidate.launch, report))
        if round_of(candidate.tiles.programs, assembled.at_once) == candidate.tiles.round:
            vars(assembled)["tiles"] = candidate.tiles  # the same programs need not be run again
        return assembled if assembled.resident else self._too_large

    def _report(self, candidate: _Candidate) -> CompiledReport | str:
        from warpplan.kernels.compile import compile_report
        from warpplan.kernels.compiler.inspection.signature import source_of

        config = candidate.config
        options = {"num_warps": config.num_warps, "num_ctas": config.num_ctas, "num_stages": config.num_stages}
        options |= {} if config.maxnreg is None else {"maxnreg": config.maxnreg}
        try:
            return compile_report(
                source_of(self.kernel, candidate.signature), options, self.device.capability, what=self.task.spec
            )
        except InvalidConfig as error:
            return str(error)

    @property
    def _too_large(self) -> str:
        return f"needs more than {self.device.smem_bytes_per_block} bytes of shared memory"

    def arguments(self, shape: Mapping[str, int], config: TuningConfig) -> tuple[str, dict[str, int]]:
        """The kernel's signature for ``shape`` and ``config``, and its whole-number arguments by name."""
        given = self._given
        constants: dict[str, Any] = dict(config.kwargs)
        parameters = {parameter.name: parameter for parameter in self.kernel.params}
        _require_given_once(given, shape, constants)
        unknown = next((name for name in constants if name not in parameters), None)
        if unknown is not None:
            raise InvalidConfig(
                f"a configuration sets {unknown}: the kernel's parameters are {', '.join(parameters)}", field="config",
                value=unknown,
            )  # fmt: skip
        pieces: list[str] = []
        sizes: dict[str, int] = {}
        found = self._derived(shape, config)
        for name, parameter in parameters.items():
            if name in constants:
                pieces.append(f"{name}={constants[name]!r}")
            elif name in found:
                number = found[name]
                if type(number) is int and not parameter.is_constexpr:
                    sizes[name] = number
                    pieces.append(f"{name}={_specialised(number)}")
                else:
                    pieces.append(f"{name}={number!r}")
            elif name in given or name in shape:
                word = _POINTER.sub(_BARE, given.get(name, str(shape.get(name))))
                described = _DESCRIPTOR.fullmatch(word)
                if described is not None and not parameter.is_constexpr:
                    word = _box(described, {**_whole(constants), **shape}, name)
                    pieces.append(f"{name}={word}")
                    continue
                number = number_of(word, shape)
                if number is not None and not parameter.is_constexpr:
                    sizes[name] = number
                    word = _specialised(number)
                elif number is not None:
                    word = str(number)
                pieces.append(f"{name}={word}")
        left_over = next((name for name in given if name not in parameters), None)
        if left_over is not None:
            pieces.append(f"{left_over}={given[left_over]}")  # refused by the reader of signatures, with the list
        return ", ".join(pieces), sizes

    def _derived(self, shape: Mapping[str, int], config: TuningConfig) -> dict[str, object]:
        """What the kernel's heuristics make of the other arguments, as a launch has it whatever the signature says; of
        a heuristic that asks for more than is known here, the signature's value counts."""
        if not self.task.heuristics:
            return {}
        given = self._given
        known: dict[str, object] = {name: argument_of(word, shape) for name, word in given.items()}
        known |= {**shape, **dict(config.kwargs), "num_warps": config.num_warps, "num_stages": config.num_stages}
        found, failed = derived(self.task.heuristics, known)
        lacking = next((name for name in failed if name not in given and name not in shape), None)
        if lacking is not None:
            raise InvalidInput(
                f"signature: {lacking}: missing, and its heuristic raised {failed[lacking]}: give its value",
                field="signature", value=lacking,
            )  # fmt: skip
        return found

    @cached_property
    def _given(self) -> dict[str, str]:
        """The words of the signature by parameter."""
        from warpplan.kernels.compiler.inspection.signature import parse_signature

        return dict(parse_signature(self.task.signature)) if self.task.signature.strip() else {}

    def elements(self, shape: Mapping[str, int]) -> dict[str, int]:
        """How many elements lie behind each pointer whose signature says so. Raises :class:`InvalidInput` for none."""
        sized = {name: found[2] for name, word in self._given.items() if (found := _POINTER.fullmatch(word))}
        counts = {name: evaluate(text, shape, f"signature.{name}") for name, text in sized.items()}
        for name, count in counts.items():
            if count < 1:
                raise InvalidInput(
                    f"signature: {name} has {sized[name]} = {count} elements: expected 1 or more",
                    field="signature", value=count, limit=1,
                )  # fmt: skip
        return counts

    def answer(self, tuned: TunedShape, profile: str, planner: str) -> KernelAnswer:
        """``tuned`` as it is kept. What lies behind pointers is no part of the question: the last ranking counts."""
        import triton

        signature = ", ".join(f"{name}={_POINTER.sub(_BARE, word)}" for name, word in sorted(self._given.items()))
        ranked = tuple((sorted_kwargs(t.config), t.time.time_us) for t in tuned.ranked if math.isfinite(t.time.time_us))
        return KernelAnswer(
            self.kernel.__name__, self.kernel.cache_key, tuple(sorted(tuned.shape.items())), signature,
            self.device.name, profile, planner, ranked, triton=triton.__version__,
        )  # fmt: skip

    def _capture(self, text: str, config: TuningConfig) -> tuple[KernelFacts, Any] | str:
        key = (text, config.num_warps, config.num_ctas)
        if key not in self._captured:
            self._captured[key] = self._fresh(text, config)
        return self._captured[key]

    def _fresh(self, text: str, config: TuningConfig) -> tuple[KernelFacts, Any] | str:
        from triton.backends.compiler import GPUTarget

        from warpplan.kernels.compiler.analysis.capture import capture
        from warpplan.kernels.compiler.inspection.signature import source_of
        from warpplan.kernels.compiler.paper.paper_programs import PaperKernel
        from warpplan.kernels.compiler.pipeline.cutting import cut, taken_diagnostics

        source = source_of(self.kernel, text)
        options = {"num_warps": config.num_warps, "num_ctas": config.num_ctas}
        try:
            with taken_diagnostics([]):
                at_cut = cut(source, GPUTarget("cuda", self.device.capability, 32), options).text
        except WarpplanError:
            raise
        except Exception as error:  # Triton's front end and passes raise types of their own
            while error.__cause__ is not None and isinstance(error.__cause__, Exception):
                error = error.__cause__
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            return f"does not compile: {lines[-1] if lines else type(error).__name__}"
        return facts_of(capture(at_cut)), PaperKernel(at_cut)


def _require_given_once(given: Mapping[str, str], shape: Mapping[str, int], constants: Mapping[str, object]) -> None:
    """Raise :class:`InvalidInput` for a parameter that the signature gives otherwise than the shape or the
    configuration does: a size of no known value is a loop of no known length."""
    for name, word in given.items():
        holder, value = ("--shapes", shape.get(name)) if name in shape else ("a configuration", constants.get(name))
        if value is not None and number_of(word, shape) != value and word != repr(value):
            raise InvalidInput(
                f"signature: {name} = {word}: {holder} gives {name}={value}: leave it out of the signature",
                field="signature", value=word,
            )  # fmt: skip


def sorted_kwargs(config: TuningConfig) -> TuningConfig:
    """``config`` as the store reads it back."""
    return TuningConfig.of(
        dict(config.kwargs), num_warps=config.num_warps, num_stages=config.num_stages, num_ctas=config.num_ctas,
        maxnreg=config.maxnreg,
    )  # fmt: skip


def _whole(constants: Mapping[str, Any]) -> dict[str, int]:
    return {name: value for name, value in constants.items() if isinstance(value, int)}


def _box(described: re.Match[str], sizes: Mapping[str, int], name: str) -> str:
    """A descriptor's type with its box in numbers."""
    box = ", ".join(str(evaluate(part, sizes, f"signature.{name}")) for part in _split(described[2]))
    return f"{described[1]}[{box}]"


def _specialised(number: int) -> str:
    """The type of an argument as Triton specialises a launch on its value."""
    if number == 1:
        return "1"
    kind = "i32" if -(1 << 31) <= number < 1 << 31 else "i64"
    return f"{kind}:16" if number % 16 == 0 else kind


def _split(text: str) -> list[str]:
    """``text`` cut at its commas outside of brackets."""
    parts, depth = [""], 0
    for c in text:
        depth += (c == "(") - (c == ")")
        if c == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += c
    return [part for part in parts if part.strip()]
