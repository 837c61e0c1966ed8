"""Kernels in the styles in which people write them, a module a family, each with its usual autotune list.

Written for this project: none is copied. ``corpus_registry.py`` lists them, ``plan_corpus.py`` says what is planned
without a GPU, ``bench_corpus.py`` times and soaks them on one.
"""
