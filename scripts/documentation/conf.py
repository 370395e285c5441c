"""Sphinx's settings for the site; `build` names the folders."""

project = "pyromq"
author = "the authors of pyromq"
extensions = ["myst_parser"]
root_doc = "docs/index"
html_theme = "furo"
html_title = "pyromq"
html_copy_source = False
templates_path = ["site/templates"]
html_static_path = ["site/static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_show_copyright = False
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
suppress_warnings = ["myst.header"]  # the headings of generated pages may begin at any level
pygments_style = "friendly"
pygments_dark_style = "native"
