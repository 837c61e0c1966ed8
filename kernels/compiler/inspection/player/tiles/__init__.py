"""What a played kernel computes with: element types in numpy, operations read once, arithmetic on tiles, global memory,
shared memory with barriers, and the vector clocks that tell a race.
"""

EXPORTS: dict[str, tuple[str, ...]] = {}
