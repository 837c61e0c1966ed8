"""The model without former names is the model."""

from __future__ import annotations

from ortools.sat.python import cp_model

from warpplan.planner.cpsat.lean_model import LeanModel


def test_a_lean_model_is_stated_as_any_and_has_no_former_names() -> None:
    models = (cp_model.CpModel(), LeanModel())
    for model in models:
        x, y = (model.new_int_var(0, 9, name) for name in "xy")
        model.add(x + y >= 4)
        model.add_no_overlap(
            [model.new_fixed_size_interval_var(x, 2, "a"), model.new_fixed_size_interval_var(y, 3, "b")]
        )
        model.minimize(2 * x + y)
    assert str(models[0].proto) == str(models[1].proto)
    assert not [name for name in vars(models[1]) if name[:1].isupper()]
