"""Loads through pointers that a producer copies by ``cp.async``: how wide their copies are, which loads these can be,
and the kernel with them marked.
"""

EXPORTS = {}
