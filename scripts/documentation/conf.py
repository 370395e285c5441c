"""Sphinx's settings for the site; `build` names the folders."""

from pathlib import Path

project = "pyromq"
author = "the authors of pyromq"
extensions = ["myst_parser"]
root_doc = "docs/index"
html_theme = "furo"
html_title = "pyromq"
html_copy_source = False
html_search_scorer = str(Path(__file__).with_name("scorer.js"))
html_show_sphinx = False
html_show_copyright = False
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
suppress_warnings = ["myst.header"]  # the headings of generated pages may begin at any level
pygments_style = "friendly"
pygments_dark_style = "native"
