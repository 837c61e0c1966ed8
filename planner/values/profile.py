"""A profile: what was measured on one GPU, with the identity that says where and when."""

from __future__ import annotations

from dataclasses import dataclass, field

from warpplan.planner.later_fields import LATER, shows_later_fields
from warpplan.planner.values.costs import CostTable


@dataclass(frozen=True)
class Identity:
    """Where and when a profile was measured. Profiles whose identities differ in gpu, driver, cuda, triton or torch are
    never mixed; costs added later may come from another driver, as the profile's notes then say."""

    gpu: str
    driver: str
    cuda: str
    triton: str
    torch: str
    python: str
    date: str
    command: str

    def comparable(self, other: Identity) -> bool:
        mine = (self.gpu, self.driver, self.cuda, self.triton, self.torch)
        return mine == (other.gpu, other.driver, other.cuda, other.triton, other.torch)


@dataclass(frozen=True)
class Rate:
    """A whole-device ceiling: median and 10th/90th percentile over ``count`` samples, in the unit its name carries."""

    p50: float
    p10: float
    p90: float
    count: int


@dataclass(frozen=True)
class Failure:
    """A probe that crashed, hung or gave nothing: a recorded result, not the end of the profile."""

    probe: str
    reason: str


@dataclass(frozen=True)
class Calibration:
    """Residual constants of the prediction of one kernel, fitted on ``shapes`` only.

    ``kernel`` is its name, with a word after it where only a variant was fitted: "gemm fp8". ``constants`` are sorted
    (name, value) pairs; the names are those of the model in ``planner.predict``.
    """

    kernel: str
    constants: tuple[tuple[str, float], ...]
    shapes: tuple[tuple[int | str, ...], ...]
    source: str


@shows_later_fields
@dataclass(frozen=True)
class Profile:
    """``ceilings`` are sorted (name, Rate) pairs: ``copy_bytes_per_s``, ``read_bytes_per_s``, ``l2_bytes_per_s``,
    ``tensor_flops_bfloat16``, ``tensor_flops_float16``, ``clock_hz_idle`` (short kernel), ``clock_hz_tensor``
    (sustained tensor load), ``launch_us`` (back-to-back graph launches of an empty kernel).

    ``parent`` is the key of the profile that this one was calibrated from, empty for one that was measured."""

    identity: Identity
    costs: CostTable
    ceilings: tuple[tuple[str, Rate], ...]
    calibrations: tuple[Calibration, ...] = ()
    failures: tuple[Failure, ...] = ()
    notes: tuple[str, ...] = field(default=())
    parent: str = field(default="", repr=False, metadata=LATER)

    def __hash__(self) -> int:
        """The identity's hash: cheap, and equal for equal profiles (solved loops are kept under the profile)."""
        return hash(self.identity)

    def calibration(self, kernel: str) -> Calibration | None:
        return next((c for c in self.calibrations if c.kernel == kernel), None)
