"""Held-out loops: kernels of other kinds than the training loops of ``loop_graphs.py``, generated from fixed seeds.

No constant of the planner has been chosen with them. :mod:`heldout.generator` lists them all; each other module holds
one family and says in its first lines which loops of which published kernels it is modelled on. What a loop is, its
costs and capacity drawn at random, is decided by its family, its number and ``generator.SEED`` alone.
"""
