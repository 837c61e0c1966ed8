"""What one partition needs of a kernel: values that nothing reads left out, layouts of fewer warps."""

EXPORTS = {}
