"""A linear layer whose three products (forward, dgrad, wgrad) are planned each on its own: torch's ``linear`` with its
gradients, and the patch that puts it into a model."""

EXPORTS = {
    "autograd": ("linear",),
    "patching": ("patch", "PatchReport"),
}
