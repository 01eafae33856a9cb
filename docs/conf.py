"""The site: Sphinx over the pages that `tools/site_pages.py` gathers. Run `make docs`."""

from pathlib import Path

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

project = html_title = "Synthesizer"
author = "The Synthesizer authors"
copyright = author
extensions = [
    "myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode",
    "sphinx_copybutton",
]  # fmt: skip
html_theme = "furo"
html_theme_options = {"navigation_with_keys": True}
html_static_path = ["static"]
html_css_files = ["site.css"]
html_extra_path = ["../extra"]
html_show_sphinx = False
html_copy_source = False

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
nb_execution_mode = "cache"
nb_execution_cache_path = str(Path(__file__).parents[1] / "notebooks")
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_merge_streams = True

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
html_math_renderer = "mathml"


def visit_math(self: HTML5Translator, node: nodes.math | nodes.math_block) -> None:
    """Write MathML, which browsers draw by themselves: no script, no font, no request."""
    block = isinstance(node, nodes.math_block)
    self.body.append(tex2mathml(node.astext(), as_block=block))
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    """Sphinx calls this."""
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math, None))
