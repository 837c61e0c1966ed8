"""CP-SAT's model without the names of former releases."""

from __future__ import annotations

from ortools.sat.python import cp_model


class LeanModel(cp_model.CpModel):
    """A model that answers to the names of today alone.

    OR-Tools gives each model its methods once more by the names that they had before, wrapped one by one: a twelfth of
    the first answer under a profile of one's own, which solves some 200 small models, and a cycle for the garbage
    collector in each.
    """

    def _add_pre_pep8_methods(self) -> None:
        """Called by the constructor of OR-Tools 9.15, and left out."""
