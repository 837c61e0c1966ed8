"""Kernels run on paper: what they do to indices computed for one program and the sizes of a launch, without data, so
that loops have lengths and tiles have places.
"""

EXPORTS = {
    "paper_programs": ("PaperKernel", "PaperProgram", "TileAccess", "UNKNOWN_TRIPS"),
}
