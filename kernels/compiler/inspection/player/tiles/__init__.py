"""What a played kernel computes with: element types in numpy, operations read once, arithmetic on tiles, global memory,
shared memory with barriers, and the vector clocks that tell a race.
"""

EXPORTS = {
    "device_memory": ("DeviceMemory", "OutOfBounds", "TMA_ALIGNMENT", "TensorMap"),
    "element_types": ("decoded", "element_type", "ElementType", "MANTISSA", "poison", "rounded", "unit_in_last_place"),
    "faults": ("FaultKind", "KernelFault", "NotPlayed"),
    "operation_forms": ("PrintedType", "read_types", "ReadyCode", "ReadyOperation"),
    "shared_tiles": ("PlayedBarrier", "SharedAllocation", "SharedView"),
    "tile_operations": ("constant_index", "Folding", "multiply", "PURE"),
    "vector_clocks": ("Actor", "AgentNumbers", "Clock", "merge"),
}
