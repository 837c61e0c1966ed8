"""What a plan comes down to for one kernel, on each GPU generation, behind one protocol.

A strategy says which options of the compile it changes, how the module at the cut is lowered, by which key its compiles
are kept, and what it is as JSON. :mod:`~.stage_hook` puts any of them into Triton's compile.
"""

EXPORTS = {
    "blackwell": ("APART", "BlackwellStrategy", "FOUND", "REST", "TOGETHER"),
    "hopper": ("HopperStrategy", "MOST_BLOCKS", "MOST_CONSUMER_WARPS", "PRODUCER"),
    "protocol": ("MOST_DEPTH", "Strategy"),
    "recorded": ("strategy_from_json", "strategy_text"),
    "stage_hook": ("*",),
    "written": ("strategy_from_text",),
}
