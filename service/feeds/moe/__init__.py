"""Tuning tables of fused mixture-of-experts layers, whoever reads them: public models' shapes, how routed tokens fall
on blocks, the consumers' kernels and the facts captured from them, predictions over a tuning space, and files with
their provenance.
"""
