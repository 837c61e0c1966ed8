"""A kernel's whole numbers: read as polynomials of its arguments and program ids, and written as operations."""

EXPORTS = {
    "polynomials": ("Monomial", "Polynomial"),
    "scalar_values": ("combined", "ONE", "ScalarReader"),
    "scalar_writer": ("MOST_I32", "ScalarWriter"),
}
