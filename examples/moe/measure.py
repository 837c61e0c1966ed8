"""What the example measures: deviations from float32, loss curves, step times."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from data import Teacher
from experts import expert_loop
from layer import GroupedProduct, LayerSizes, MoELayer
from torch import Tensor

from warpplan.kernels.timing import round_order

BALANCE_WEIGHT = 0.01
"""Of the load-balancing loss in the total, as in the Switch transformer."""
WARM_UP_STEPS = 20
"""Steps over which the learning rate grows from 0, at most a fifth of all."""


LEARNING_RATE = 1.0
"""Times 1 / width: wider layers take smaller steps (Yang et al. 2022). At 0.3 and a width of 2048 an update of a
bfloat16 weight is about one unit in its last place, and rounding slows the training down."""


class Student:
    """A layer and its optimizer. The same seed gives the same weights, whatever the products and the dtype."""

    def __init__(self, sizes: LayerSizes, product: GroupedProduct, device: str, dtype: torch.dtype) -> None:
        torch.manual_seed(1)
        with torch.device(device):
            self.layer = MoELayer(sizes, product)  # in bfloat16 first, so that float32 starts from equal weights
        for weight in (self.layer.gate_up, self.layer.down):
            weight.data = weight.data.to(dtype)
        self.dtype = dtype
        self.rate = LEARNING_RATE / sizes.width
        self.optimizer = torch.optim.AdamW(
            self.layer.parameters(), lr=self.rate, betas=(0.9, 0.95), weight_decay=0.0, fused=device == "cuda"
        )

    def set_rate(self, factor: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate * factor

    def gradients(self, x: Tensor, target: Tensor) -> Tensor:
        """Forward and backward; the regression's loss, on the device."""
        self.optimizer.zero_grad(set_to_none=True)
        y, routing = self.layer(x)
        loss = (y.float() - target).square().mean()
        (loss + BALANCE_WEIGHT * routing.balance_loss).backward()
        return loss.detach()


def train(students: Mapping[str, Student], teacher: Teacher, steps: int) -> dict[str, list[float]]:
    """The loss of every step. All students see the same batches, each of which is new."""
    losses: dict[str, list[Tensor]] = {name: [] for name in students}
    warm_up = max(1, min(WARM_UP_STEPS, steps // 5))
    for step in range(steps):
        tokens, target = teacher.batch(step)
        tokens = tokens.bfloat16()  # what every student is given, the one in float32 included
        for name, student in students.items():
            student.set_rate(min(1.0, (step + 1) / warm_up))
            losses[name].append(student.gradients(tokens.to(student.dtype), target))
            student.optimizer.step()
    return {name: torch.stack(curve).tolist() for name, curve in losses.items()}


def deviations(
    sizes: LayerSizes, products: Mapping[str, GroupedProduct], teacher: Teacher
) -> dict[str, dict[str, float]]:
    """Relative errors (Frobenius norm) of one step's output and gradients in bfloat16, from the loop over experts in
    float32 with the same weights and tokens."""

    def outcome(product: GroupedProduct, dtype: torch.dtype) -> dict[str, Tensor]:
        layer = Student(sizes, product, teacher.device, dtype).layer
        tokens, target = teacher.batch(0)
        x = tokens.bfloat16().to(dtype).requires_grad_()
        y, _ = layer(x)
        (y.float() * target).sum().backward()
        found = {"y": y, "dx": x.grad, "d gate_up": layer.gate_up.grad, "d down": layer.down.grad}
        return {name: value.detach().float() for name, value in found.items()}

    exact = outcome(expert_loop, torch.float32)
    found = {}
    for name, product in products.items():
        errors = {part: value - exact[part] for part, value in outcome(product, torch.bfloat16).items()}
        found[name] = {part: float(error.norm() / exact[part].norm()) for part, error in errors.items()}
    return found


@dataclass
class StepTimes:
    """Milliseconds of a step and of its forward and backward passes alone; one median for each round."""

    step: list[float] = field(default_factory=list)
    gradients: list[float] = field(default_factory=list)


def step_times(
    students: Mapping[str, Student], teacher: Teacher, rounds: int = 9, settle_s: float = 0.5, reads: int = 10
) -> dict[str, StepTimes]:
    """Every student on one batch with the same weights, in turn: each round a student runs for ``settle_s`` seconds, so
    that the card's clock answers to its own power draw, and then ``reads`` steps are timed. The learning rate is 0:
    the work is the same, and the routing stays as it is."""
    state = next(iter(students.values())).layer.state_dict()
    tokens, target = teacher.batch(0)
    tokens = tokens.bfloat16()
    for student in students.values():
        student.layer.load_state_dict(state)
        student.set_rate(0.0)
    times = {name: StepTimes() for name in students}
    for number in range(rounds):
        for name in round_order(tuple(students), number):
            student = students[name]
            until = time.perf_counter() + settle_s
            while time.perf_counter() < until:
                timed_step(student, tokens, target)()
            runs = [timed_step(student, tokens, target) for _ in range(reads)]
            gradients, whole = zip(*(read() for read in runs), strict=True)
            times[name].gradients.append(sorted(gradients)[reads // 2])
            times[name].step.append(sorted(whole)[reads // 2])
    return times


def timed_step(student: Student, tokens: Tensor, target: Tensor) -> Callable[[], tuple[float, float]]:
    """Start a step; the result waits for it and gives the milliseconds of forward and backward, and of the whole step:
    by CUDA events, so that the host runs ahead where an implementation lets it."""
    marks = [_now(tokens)]
    student.gradients(tokens, target)
    marks.append(_now(tokens))
    student.optimizer.step()
    marks.append(_now(tokens))

    def read() -> tuple[float, float]:
        if not tokens.is_cuda:
            return 1e3 * (marks[1] - marks[0]), 1e3 * (marks[2] - marks[0])
        marks[-1].synchronize()
        return marks[0].elapsed_time(marks[1]), marks[0].elapsed_time(marks[2])

    return read


def _now(tensor: Tensor) -> torch.cuda.Event | float:
    if not tensor.is_cuda:
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
