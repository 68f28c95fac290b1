"""The site: Sphinx on the Markdown of this folder. `make docs` builds it; nothing here needs the network."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import api
import commands

from twoclock import __version__

project = "twoclock"
author = "The twoclock developers"
copyright = "The twoclock developers, Apache-2.0"
version = release = __version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon"]
exclude_patterns = ["_build", "**/.ipynb_checkpoints"]
html_theme = "sphinx_book_theme"
html_title = f"twoclock {__version__}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_favicon = "_static/favicon.svg"
# One search, in the sidebar: the theme beneath would add a bar with another.
html_theme_options = {"show_toc_level": 2, "home_page_in_toc": True, "navbar_persistent": []}
html_context = {"default_mode": "auto"}  # light or dark as the reader's system is
html_show_sourcelink = False
html_copy_source = False

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

# Each tutorial is run while the site is built, and an error in one stops the build.
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 600  # a cell takes seconds; machines may be busy
nb_execution_in_temp = True
nb_merge_streams = True

autosummary_generate = False
autodoc_typehints = "none"
autodoc_preserve_defaults = True
autodoc_member_order = "bysource"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False

# What people search for, and the page that answers it: an entry of the index comes before hits in the text.
SEARCHED = {
    "learning rate": "which",
    "step size": "which",
    "confidence interval": "intervals",
    "off-policy": "logs",
    "importance sampling": "logs",
    "average reward": "average_reward",
    "disturbance": "lqr",
    "hyperparameter": "tuning",
}


def index_searched(app, page, source):
    """Add the entries of a page below its title."""
    entries = "".join(f"\n```{{index}} ! {words}\n```\n" for words, answer in SEARCHED.items() if answer == page)
    title, _, rest = source[0].partition("\n")
    source[0] = f"{title}\n{entries}{rest}"


def setup(app):
    api.write(Path(app.srcdir) / "api")
    commands.write(Path(app.srcdir) / "reference" / "command_line.md")
    app.connect("source-read", index_searched)
    app.connect("autodoc-process-docstring", api.as_plain_text)
