"""Settings of the book, and the two things that Sphinx doesn't do by itself: formulas without a script or a network,
and links from the text to the glossary. workshop_lib/maintain/book.py writes the pages beside this file."""

import re
from pathlib import Path

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from ipython_pygments_lexers import IPython3Lexer
from pygments.token import Operator

project = "Distributed deep learning, hands on"
author = "the workshop's authors"
extensions = ["myst_nb"]
include_patterns = ["*.md", "notebooks/*.ipynb", "notebooks/scripts/README.md", "assets/mnist/README.md"]
include_patterns += ["assets/instructor/*.md", "submissions/README.md", "submissions/*/README.md"]
# The notebooks come executed. What a rank printed to stderr belongs to the page.
nb_execution_mode = "off"
nb_merge_streams = True
nb_render_markdown_format = "myst"  # links in what a cell displays
nb_number_source_lines = False
suppress_warnings = ["misc.highlighting_failure"]  # a cell may hold a shell script
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 4

html_theme = "furo"
html_title = "Distributed deep learning"
html_static_path = ["_static"]
html_css_files = ["book.css"]
html_math_renderer = "mathml"
html_copy_source = html_show_sourcelink = html_show_sphinx = html_show_copyright = smartquotes = False
html_show_search_summary = False  # it fetches pages, which a browser refuses for files
pygments_style, pygments_dark_style = "a11y-high-contrast-light", "a11y-high-contrast-dark"

ENTRY = re.compile(r"^- (\*\*.+?\*\*): (.+)$", re.MULTILINE)


def words_of(entry):
    """The term of an entry of the glossary, and other words for it."""
    return re.findall(r"\*\*(.+?)\*\*", entry[1])


ENTRIES = list(ENTRY.finditer(Path(__file__).with_name("glossary.md").read_text(encoding="utf-8")))
TERMS = {
    word: ("term-" + re.sub(r"\W+", "-", words_of(each)[0]), each[2]) for each in ENTRIES for word in words_of(each)
}
ANY_TERM = re.compile(rf"(?<![\w-])(?:{'|'.join(sorted(map(re.escape, TERMS), key=len, reverse=True))})(?![\w-])", re.I)
# Where a term is not text: in code, in what is a link already, in headings.
NOT_TEXT = (nodes.literal, nodes.literal_block, nodes.reference, nodes.title, nodes.math, nodes.raw, nodes.term)


# An underbrace, up to its label, which docutils sets beside it unless told that it's a limit.
UNDERBRACE = re.compile(r"(\\underbrace\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\})_")


def formula(as_block):
    """A visitor that writes a formula as MathML, which browsers set by themselves."""

    def visit(self, node):
        known = re.sub(r"\\(big|Big|bigg|Bigg)(?![a-zA-Z])", r"\\\1l", node.astext().strip())  # as docutils has them
        mathml = tex2mathml(UNDERBRACE.sub(r"\1\\limits_", known), as_block=as_block)
        self.body.append(f'<div class="math">{mathml}</div>' if as_block else mathml)
        raise nodes.SkipNode

    return visit


def link_terms(app, doctree, docname):
    """Link the first place where a page's text uses each term of the glossary."""
    if docname == "glossary":
        return
    glossary, unlinked = app.builder.get_relative_uri(docname, "glossary"), dict(TERMS)
    for text in list(doctree.findall(nodes.Text)):
        parent, inside = text.parent, text.parent
        while inside is not None and not isinstance(inside, NOT_TEXT):
            inside = inside.parent
        if inside is not None or not (pieces := linked(str(text), unlinked, glossary)):
            continue
        parent.replace(text, pieces)


def linked(text, unlinked, glossary):
    """`text` in pieces, with links to the terms that have none yet; takes these out of `unlinked`. Empty: no term."""
    pieces, end = [], 0
    for match in ANY_TERM.finditer(text):
        anchor, meaning = unlinked.get(match[0], unlinked.get(match[0].lower(), ("", "")))
        if not anchor:
            continue
        for word in [word for word, (its, _) in unlinked.items() if its == anchor]:
            del unlinked[word]
        link = nodes.reference("", match[0], refuri=f"{glossary}#{anchor}", reftitle=meaning, classes=["term"])
        pieces += [nodes.Text(text[end : match.start()]), link]
        end = match.end()
    return [*pieces, nodes.Text(text[end:])] if pieces else []


def sphinx_glossary(app, docname, source):
    """The list of glossary.md, which any viewer can show, as Sphinx's own glossary, whose entries have addresses."""
    if docname == "glossary":
        begin, end = ENTRY.search(source[0]).start(), [*ENTRY.finditer(source[0])][-1].end()
        entries = ("\n".join([*words_of(each)[:1], f"  {each[2]}", ""]) for each in ENTRIES)
        listed = "\n".join(["```{glossary}", ":sorted:", "", *entries, "```"])
        source[0] = source[0][:begin] + listed + source[0][end:]


def headings_with_a_level(app, pagename, templatename, context, doctree):
    """A screen reader needs the level of the headings in the sidebar, which Sphinx doesn't give."""
    tree = context.get("furo_navigation_tree", "")
    context["furo_navigation_tree"] = tree.replace('role="heading"', 'role="heading" aria-level="2"')


class RankCells(IPython3Lexer):
    """A cell that begins with `%%ranks` is Python, too."""

    tokens = IPython3Lexer.tokens | {"root": [(r"%%ranks.*\n", Operator), *IPython3Lexer.tokens["root"]]}


def setup(app):
    app.add_lexer("ipython3", RankCells)
    app.connect("html-page-context", headings_with_a_level, priority=900)  # after the theme
    app.connect("source-read", sphinx_glossary)
    app.add_html_math_renderer("mathml", (formula(False), None), (formula(True), None))
    app.connect("doctree-resolved", link_terms)
