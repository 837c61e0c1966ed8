"""``out = x + y`` over vectors of any length: the smallest kernel, and the example of "add your own kernel"."""
