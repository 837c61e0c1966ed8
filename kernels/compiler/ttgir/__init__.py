"""TTGIR as text: read into a tree, edited, printed; its control flow, functions, types, shapes, names and source
locations as values. Needs neither Triton nor torch.
"""

EXPORTS = {
    "accumulator_layouts": ("with_one_accumulator_layout",),
    "axis_hints": ("shorten_hints",),
    "control": ("*",),
    "functions": ("arguments", "replace_function", "with_body"),
    "ir": (
        "CLOSING",
        "IrOperation",
        "is_value",
        "MalformedIR",
        "Module",
        "OPENING",
        "pack_of",
        "Region",
        "split_list",
        "tokenize",
    ),
    "names": ("header_definitions", "unique_names", "with_suffix"),
    "parsing": ("parse", "parse_operation"),
    "printed_shapes": ("operand_list", "Printed", "result_shapes", "shapes_in", "sliced"),
    "slice_layouts": ("elements_of_slice",),
    "source_locations": ("source_line", "SourceLocation", "SourceLocations"),
    "types": ("find_types", "parse_type", "ShapedType"),
}
