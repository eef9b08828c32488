"""Settings of Sphinx for the site that docs/site.py builds."""

import re

from docutils import nodes
from latex2mathml.converter import convert

from hypersphere import __version__

project = "hypersphere"
author = "the hypersphere contributors"
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "hypersphere"
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_show_search_summary = False  # a browser does not let a page fetch others from a folder
html_theme_options = {"navigation_with_keys": True}
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
default_role = "code"  # single backticks, as the docstrings use them
html_math_renderer = "mathml"
maximum_signature_line_length = 80

_LITERAL = re.compile(r"(``.*?``|`[^`\n]*`)")


def plain_formulas(app, what, name, obj, options, lines):
    """Formulas are written plainly: |x| and w* mean themselves, not reStructuredText."""
    formula = False  # inside a math directive, whose markup is LaTeX's
    for i, line in enumerate(lines):
        formula = line.lstrip().startswith(".. math::") or (formula and bool(line.strip()))
        if formula or line.lstrip().startswith((">>>", "...")):
            continue
        parts = _LITERAL.split(line)
        for j in range(0, len(parts), 2):
            parts[j] = parts[j].replace("|", "∣").replace("*", "\\*")
        lines[i] = "".join(parts)


def inline_math(translator, node):
    """Formulas as MathML, which browsers draw themselves: no script, no network."""
    translator.body.append(convert(node.astext()))
    raise nodes.SkipNode


def block_math(translator, node):
    translator.body.append(f'<div class="math">{convert(node.astext(), display="block")}</div>')
    raise nodes.SkipNode


def setup(app):
    app.add_html_math_renderer("mathml", (inline_math, None), (block_math, None))
    # Before napoleon, which writes markup of its own.
    app.connect("autodoc-process-docstring", plain_formulas, priority=100)
