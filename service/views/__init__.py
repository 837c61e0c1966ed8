"""What a plan looks like: as lines, as a picture, as a page, as a trace."""

EXPORTS = {
    "html": ("*",),
    "lanes": ("*",),
    "perfetto": ("*",),
    "phases": ("*",),
    "sections": ("*",),
    "svg": ("*",),
    "text": ("*",),
}
