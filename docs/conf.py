"""Sphinx: `make docs` builds the pages with -W -n, so that a dead link or an unknown name fails. No network is used."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "warpplan"
author = "the warpplan authors"
release = version = metadata.version("warpplan")

extensions = ["myst_parser", "sphinx.ext.autodoc", "generated_text"]
exclude_patterns = ["_build", "_ext", "_static"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

# Quotes and ellipses, not dashes: options start with two of them.
smartquotes_action = "qe"

nitpicky = True
# Replaced by mocks below, so that there is nothing to look a name up in.
nitpick_ignore_regex = [(r"py:.*", r"(torch|triton)\..*")]
autodoc_mock_imports = ["torch", "triton"]
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
add_module_names = False
python_maximum_signature_line_length = 88

html_theme = "furo"
html_title = "warpplan"
html_static_path = ["_static"]
html_css_files = ["warpplan.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
