"""Settings of the book, and what Sphinx doesn't do by itself: formulas without a script or a network, links from the
text to the glossary, long outputs folded, and the texts that the search shows. tools/book.py writes the
pages beside this file."""

import json
import os
import re
from pathlib import Path

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from ipython_pygments_lexers import IPython3Lexer
from pygments.token import Operator

project = "Distributed deep learning, hands on"
author = "the workshop's authors"
extensions = ["myst_nb"]
include_patterns = ["**.md", "notebooks/*.ipynb"]
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
html_baseurl = os.environ.get("WORKSHOP_BOOK_URL", "")  # where the site is published; each page names its address there
html_static_path = ["_static"]
html_css_files = ["book.css"]
html_math_renderer = "mathml"
html_copy_source = html_show_sourcelink = html_show_sphinx = html_show_copyright = smartquotes = False
html_show_search_summary = False  # it fetches pages, which a browser refuses for files; search.js does it instead
pygments_style, pygments_dark_style = "a11y-high-contrast-light", "a11y-high-contrast-dark"

ENTRY = re.compile(r"^- (\*\*.+?\*\*): (.+?\.)(?: (\[\w+\]\(\S+\)))?$", re.MULTILINE)
COLUMNS = re.compile(r"\S {2,}\S")
SHOWN_LINES = 12  # of a long output
LONG_LINES = 24


def words_of(entry):
    """The term of an entry of the glossary, and other words for it."""
    return re.findall(r"\*\*(.+?)\*\*", entry[1])


def meaning_of(entry):
    """The meaning of an entry, and the number of the notebook that teaches it, if one does."""
    return f"{entry[2]} (Taught in {entry[3][1:].partition(']')[0]}.)" if entry[3] else entry[2]


ENTRIES = list(ENTRY.finditer(Path(__file__).with_name("glossary.md").read_text(encoding="utf-8")))
TERMS = {
    word: ("term-" + re.sub(r"\W+", "-", words_of(each)[0]), meaning_of(each))
    for each in ENTRIES
    for word in words_of(each)
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
        entries = []
        for each in ENTRIES:
            taught = f" Taught in {each[3]}." if each[3] else ""
            entries.append(f"{words_of(each)[0]}\n  {each[2]}{taught}\n")
        listed = "\n".join(["```{glossary}", ":sorted:", "", *entries, "```"])
        source[0] = source[0][:begin] + listed + source[0][end:]


def arrange_outputs(app, doctree, docname):
    """Mark outputs with columns, which must not be wrapped. Of a long output, show the rest after a click."""
    outputs = [each for each in doctree.findall(nodes.container) if "cell_output" in each["classes"]]
    for output in outputs:
        for block in list(output.findall(nodes.literal_block)):
            lines = block.astext().rstrip("\n").split("\n")
            if sum(bool(COLUMNS.search(line)) for line in lines) > len(lines) / 3:
                block["classes"].append("workshop-columns")
            if len(lines) <= LONG_LINES:
                continue
            parts = []
            for shown in (lines[:SHOWN_LINES], lines[SHOWN_LINES:]):
                part = block.copy()
                part += nodes.Text("\n".join(shown))
                part.rawsource = part.astext()
                parts.append(part)
            opened = f'<details class="workshop-more"><summary>{len(lines) - SHOWN_LINES} more lines</summary>'
            parts.insert(1, nodes.raw("", opened, format="html"))
            block.parent.replace(block, [*parts, nodes.raw("", "</details>", format="html")])


def write_sections(app, exception):
    """Write the texts of all sections to sections.js, which the search shows excerpts of."""
    if exception or app.builder.name != "html":
        return
    pages = {}
    for docname in sorted(app.env.found_docs):
        sections = pages[docname] = []
        for section in app.env.get_doctree(docname).findall(nodes.section):
            inside = [child for child in section if not isinstance(child, nodes.section | nodes.title)]
            blocks = [block for child in inside for block in child.findall(nodes.TextElement)]
            texts = [block.astext() for block in blocks if not isinstance(block, nodes.Inline)]
            sections.append([section["ids"][0], section[0].astext(), " ".join(" ".join(texts).split())])
    content = f"window.workshopSections = {json.dumps(pages, ensure_ascii=False)};\n"
    (Path(app.outdir) / "_static" / "sections.js").write_text(content, encoding="utf-8")


def scripts_of_page(app, pagename, templatename, context, doctree):
    """Add the scripts that only some pages need."""
    if pagename == "search":
        app.add_js_file("sections.js")
        app.add_js_file("search.js")
    elif pagename.startswith("notebooks/"):
        app.add_js_file("guess.js")


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
    app.connect("doctree-resolved", arrange_outputs)
    app.connect("html-page-context", scripts_of_page)
    app.connect("build-finished", write_sections)
