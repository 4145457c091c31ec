"""The pictures of the pages, as SVG. Each has its own background and colours for light and dark."""

from collections.abc import Callable
from html import escape

FONTS = 'system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif'
STYLE = """
  svg { --paper: #ffffff; --ink: #1b2a2f; --soft: #5a6b70; --line: #8fa3a8; --site: #e3f1ee;
        --rows: #1f7a6d; --middle: #e9ecf7; --sums: #4254a8; --person: #fbeedd; --model: #a35b00; }
  @media (prefers-color-scheme: dark) {
    svg { --paper: #1d2326; --ink: #e8efee; --soft: #a9b8bb; --line: #71868b; --site: #1f3a36;
          --rows: #6fd0bf; --middle: #282f4d; --sums: #a9b6ff; --person: #46351f; --model: #f0b266; } }
  text { font-family: FONTS; font-size: 15px; fill: var(--ink); }
  .small { font-size: 13px; fill: var(--soft); }
  .bold { font-weight: 600; }
  .rows { fill: var(--rows); }
  .sums { fill: var(--sums); }
  .model { fill: var(--model); }
  .box { stroke: var(--line); stroke-width: 1.2; }
  .arrow { stroke: var(--line); stroke-width: 2; fill: none; marker-end: url(#head); }
  .dashed { stroke-dasharray: 5 4; }
""".replace("FONTS", FONTS)
Point = tuple[float, float]


class Picture:
    """A picture that grows by boxes, arrows and texts."""

    def __init__(self, width: int, height: int, title: str, description: str) -> None:
        self.size, self.title, self.description = (width, height), title, description
        self.parts: list[str] = []

    def text(self, x: float, y: float, words: str, kind: str = "", anchor: str = "middle") -> None:
        """Words on one line."""
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'
        )

    def box(self, x: float, y: float, width: float, height: float, fill: str, *lines: str) -> None:
        """A box with lines of words: the first one bold, the others small."""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="8" class="box" '
            f'fill="var(--{fill})"/>'
        )
        top = y + height / 2 - 10 * (len(lines) - 1) + 5
        for number, words in enumerate(lines):
            self.text(x + width / 2, top + 20 * number, words, "small" if number else "bold")

    def arrow(self, *points: Point, kind: str = "") -> None:
        """A line through points that ends in an arrow."""
        path = "M" + " L".join(f"{x:g} {y:g}" for x, y in points)
        self.parts.append(f'<path d="{path}" class="arrow {kind}"/>')

    def table(self, x: float, y: float, columns: list[str], rows: int, size: float = 20) -> None:
        """A small table: a colour for each column."""
        for row in range(rows):
            for column, fill in enumerate(columns):
                self.parts.append(
                    f'<rect x="{x + column * size * 1.6:g}" y="{y + row * size:g}" width="{size * 1.6:g}" '
                    f'height="{size:g}" fill="var(--{fill})" class="box"/>'
                )

    def svg(self) -> str:
        """The whole document."""
        width, height = self.size
        body = "\n".join(f"  {part}" for part in self.parts)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
            f'height="{height}" role="img" aria-labelledby="title description">\n'
            f'<title id="title">{escape(self.title)}</title>\n'
            f'<desc id="description">{escape(self.description)}</desc>\n<style>{STYLE}</style>\n'
            '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
            'orient="auto-start-reverse"><path d="M0 0 L10 5 L0 10 z" fill="var(--line)"/></marker></defs>\n'
            f'<rect width="{width}" height="{height}" rx="10" fill="var(--paper)"/>\n{body}\n</svg>\n'
        )


def parties() -> str:
    """Who takes part, and what travels."""
    picture = Picture(
        760,
        330,
        "Who takes part",
        "North, South and East each keep a table and send masked integers to the aggregator, which reads "
        "only the sum and sends back splits. The analyst sends terms and gets the model.",
    )
    for number, (name, rows) in enumerate((("North", 256), ("South", 128), ("East", 43))):
        y = 25 + 98 * number
        picture.box(20, y, 170, 78, "site", name, f"{rows} rows stay here", "a policy decides")
        picture.arrow((192, y + 32), (376, 150 + 12 * (number - 1)))
    picture.text(262, 32, "masked integers", "small sums", "start")
    picture.box(380, 100, 170, 110, "middle", "Aggregator", "adds; reads the sum", "of all, of none alone")
    picture.arrow((465, 212), (465, 276), (192, 276), kind="dashed")
    picture.text(330, 300, "splits and leaf values, to every site", "small")
    picture.box(620, 25, 120, 78, "person", "Analyst", "Marie")
    picture.arrow((618, 52), (500, 52), (500, 98))
    picture.text(560, 44, "terms", "small")
    picture.arrow((552, 160), (680, 160), (680, 106))
    picture.text(616, 180, "model", "small model")
    return picture.svg()


def turn() -> str:
    """One turn: a question about a histogram."""
    picture = Picture(
        760,
        400,
        "One turn of a histogram",
        "The aggregator asks for a histogram. North, South and East each compute gradient sums by bin, "
        "add masks that cancel, and report. The sum of the reports has no masks, "
        "and the aggregator picks a split.",
    )
    picture.box(
        20, 20, 720, 44, "middle", "1  The aggregator asks: gradient sums by bin, for the nodes of this level"
    )
    values = (("North", "3", "+5 +2", "10"), ("South", "4", "-5 +1", "0"), ("East", "1", "-2 -1", "-2"))
    for number, (name, own, masks, report) in enumerate(values):
        x = 20 + 250 * number
        picture.arrow((x + 110, 66), (x + 110, 88))
        picture.box(x, 90, 220, 112, "site")
        picture.text(x + 110, 114, name, "bold")
        picture.text(x + 14, 140, "2  own sum of a bin", "small", "start")
        picture.text(x + 206, 140, own, "rows bold", "end")
        picture.text(x + 14, 164, "3  masks, added", "small", "start")
        picture.text(x + 206, 164, masks, "small", "end")
        picture.text(x + 14, 188, "4  leaves the site", "small", "start")
        picture.text(x + 206, 188, report, "sums bold", "end")
        picture.arrow((x + 110, 204), (x + 110, 238))
    picture.box(
        20,
        240,
        720,
        60,
        "middle",
        "5  The aggregator adds: 10 + 0 - 2 = 8, which is 3 + 4 + 1",
        "the masks cancel in the sum of all, and in no smaller one",
    )
    picture.arrow((380, 302), (380, 330))
    picture.box(
        20,
        332,
        720,
        50,
        "middle",
        "6  The aggregator picks the best split; it rides along with the next question",
    )
    return picture.svg()


def protections() -> str:
    """Where policy, masks and noise act."""
    picture = Picture(
        760,
        300,
        "Where protections act",
        "At the site a policy decides what is answered. Masks hide the site's sums from the aggregator. "
        "Noise bounds what the opened sums and the model tell of a row, against everybody who sees them.",
    )
    picture.box(20, 60, 150, 80, "site", "Rows", "never leave")
    picture.box(220, 60, 150, 80, "site", "Sums of a site", "integers")
    picture.box(415, 60, 160, 80, "middle", "Sum of all sites", "read by the aggregator")
    picture.box(620, 60, 120, 80, "person", "Model", "many read it")
    for x, end in ((172, 217), (372, 412), (577, 617)):
        picture.arrow((x, 100), (end, 100))
    picture.text(95, 40, "at the site", "small")
    picture.text(295, 40, "at the site", "small")
    picture.text(495, 40, "at the aggregator", "small")
    picture.text(680, 40, "at the analyst", "small")
    for x, name, words, more in (
        (195, "policy and approval", "a site answers only", "what it agreed to"),
        (395, "masks, encryption", "nobody reads the sums", "of a single site"),
        (595, "noise", "added at the sites: what", "is read tells little of a row"),
    ):
        picture.arrow((x, 190), (x, 106), kind="dashed")
        picture.text(x, 212, name, "bold rows")
        picture.text(x, 234, words, "small")
        picture.text(x, 254, more, "small")
    return picture.svg()


def modes() -> str:
    """Rows or columns apart."""
    picture = Picture(
        760,
        300,
        "Different rows, or different columns",
        "On the left three parties hold different rows of the same columns. On the right a bank with the "
        "label and a phone company hold different columns of the same rows, matched by their ids.",
    )
    picture.text(190, 34, "Different rows", "bold")
    picture.text(190, 56, "the same columns", "small")
    for number, (name, rows) in enumerate((("North", 3), ("South", 2), ("East", 1))):
        y = 76 + (0, 74, 128)[number]
        picture.table(130, y, ["site", "site", "site", "person"], rows)
        picture.text(116, y + 10 * rows + 5, name, "", "end")
    picture.text(242, 238, "label", "small model")
    picture.text(190, 284, "nothing to set", "small")
    picture.parts.append('<line x1="380" y1="20" x2="380" y2="280" class="box"/>')
    picture.text(570, 34, "Different columns", "bold")
    picture.text(570, 56, "the same rows, matched by id", "small")
    picture.table(416, 100, ["middle", "site", "site", "person"], 5)
    picture.table(620, 100, ["middle", "site", "site"], 5)
    picture.text(480, 90, "Bank", "")
    picture.text(668, 90, "Phone company", "")
    picture.text(432, 222, "id", "small")
    picture.text(528, 222, "label", "small model")
    picture.text(636, 222, "id", "small")
    picture.text(570, 284, "label_holder, columns.held", "small")
    return picture.svg()


PICTURES: dict[str, Callable[[], str]] = {
    f"pictures/{make.__name__}.svg": make for make in (parties, turn, protections, modes)
}
"""What makes each picture, by its path under docs."""
