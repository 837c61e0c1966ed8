"""A compiler pass as data, and the runner that turns its name into a call of Triton's binding."""

from __future__ import annotations

from dataclasses import dataclass

from warpplan.kernels.triton_types import CompileOptions, MlirModule, PassArgument

THREADS = 32


@dataclass(frozen=True)
class PassStep:
    """One pass: ``name`` is "group.pass" for the binding ``passes.group.add_pass`` (``nvidia.passes`` for its groups).

    An argument that is a string names what it is taken from: ``target``, ``capability``, ``debug`` or a field of the
    compile's options; any other argument is itself. ``only`` is the option without which the release leaves it out.
    """

    name: str
    arguments: tuple[str | int | bool, ...] = ()
    only: str = ""


def step(name: str, *arguments: str | int | bool, only: str = "") -> PassStep:
    return PassStep(name, arguments, only)


@dataclass(frozen=True)
class Halves:
    """``make_ttgir`` cut in two; ``stock`` is Triton's own pass at the cut, which the planned path leaves out."""

    before: tuple[PassStep, ...]
    after: tuple[PassStep, ...]
    stock: tuple[PassStep, ...] = ()


def calls(
    steps: tuple[PassStep, ...], options: CompileOptions, capability: int, debug: bool
) -> list[tuple[str, tuple[PassArgument, ...]]]:
    """(name, arguments) of each pass that a compile with ``options`` runs, in order."""
    named = {"target": f"cuda:{capability}", "capability": capability, "debug": debug}

    def argument(value: str | int | bool) -> PassArgument:
        if not isinstance(value, str):
            return value
        return named[value] if value in named else getattr(options, value)

    return [(s.name, tuple(map(argument, s.arguments))) for s in steps if not s.only or _asked(s.only, options)]


def run(steps: tuple[PassStep, ...], module: MlirModule, options: CompileOptions, capability: int, label: str) -> None:
    """Run the passes over ``module`` in place. Triton's own errors come through."""
    from triton._C.libtriton import ir, nvidia, passes

    manager = ir.pass_manager(module.context)
    debug = manager.enable_debug()
    for name, arguments in calls(steps, options, capability, bool(debug)):
        group, _, binding = name.partition(".")
        home = nvidia.passes if group in ("hopper", "ttnvgpuir") else passes
        getattr(getattr(home, group), f"add_{binding}")(manager, *arguments)
    manager.run(module, label)


def _asked(option: str, options: CompileOptions) -> bool:
    """Whether a flag is set, or a sanitizer is among those of ``instrumentation_mode``."""
    return bool(getattr(options, option, False)) or option in getattr(options, "instrumentation_mode", "").split(",")
