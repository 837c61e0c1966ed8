"""The search behind ``warpplan pack``: buffers that are live for part of a line of time. ``line_packing`` is the entry;
``line_portfolio`` shares the work among first fit, the skyline search with restarts, beams over its nodes, beams that
CP-SAT completes, and CP-SAT over the orders of the pieces. Nothing that plans imports from here."""

EXPORTS = {
    "line_packing": ("*",),
}
