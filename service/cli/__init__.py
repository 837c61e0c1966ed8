"""The command line, ``warpplan --help``: a module a command, their shared options and output, and ``app``, which puts
them together. A command imports what it needs when it runs, so that small ones start fast."""

EXPORTS = {
    "shared_options": (
        "LONGEST_S",
        "DeviceName",
        "Json",
        "LineTally",
        "open_workflow",
        "print_json",
        "ProfileFile",
        "read_lines",
        "require_store",
        "StorePlace",
        "user_output_on_stderr",
    ),
}
