"""All colors of the workshop's figures and of the live dashboard, in one place.

The first seven are Okabe and Ito's (Color Universal Design, 2008), which people with any color vision can tell apart.
Markers and dashes tell the others apart.
"""

BLUE = "#0072B2"
VERMILION = "#D55E00"
GREEN = "#009E73"
PURPLE = "#CC79A7"
LIGHT_BLUE = "#56B4E9"
YELLOW = "#E69F00"
BLACK = "#000000"
COLORS = [BLUE, VERMILION, GREEN, PURPLE, LIGHT_BLUE, YELLOW, BLACK]
COLORS += ["#882255", "#999933", "#4800F0", "#900000", "#480060"]

# The same hues, light enough for black text.
TINTS = ["#9CC9E8", "#F3BE94", "#93D4BC", "#E8C5D8", "#BFE0F6", "#F5D58A", "#CFCFCF", "#F7F1A6"]

INK = "#000000"  # text and frames
PAPER = "#FFFFFF"  # the background
GRAY = "#595959"  # secondary text and lines
GRID = "#D9D9D9"
