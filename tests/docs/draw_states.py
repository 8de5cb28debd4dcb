"""Draws the states of a job and every transition of the table: `python -m tests.docs.draw_states`, from the root."""

from math import hypot
from pathlib import Path

from service.state.states import STATUS_OF, TRANSITIONS, State, is_final

PICTURE = Path(__file__).parents[2] / "docs" / "pictures" / "states.svg"

WIDTH, HEIGHT = 960, 560
HALF_WIDTH, HALF_HEIGHT = 62, 24
PLACES = {
    State.SCHEDULED: (120, 90),
    State.PENDING: (330, 200),
    State.WAITING: (330, 360),
    State.RETRYING: (120, 470),
    State.RUNNING: (560, 280),
    State.SUCCEEDED: (840, 280),
    State.CANCELLED: (840, 90),
    State.DEAD: (840, 470),
}
#: An arrow has the colour of where it leads.
COLOURS = {"pending": "#8a6d1d", "running": "#3c78b4", "succeeded": "#2f7d4f", "failed": "#b04a3c"}
FILLS = {"pending": "#fdf6e3", "running": "#eaf2fb", "succeeded": "#e8f5ec", "failed": "#fbebe8"}


def draw() -> str:
    """Return the picture as SVG."""
    arrows = [_arrow(source, target) for source in State for target in State if target in TRANSITIONS[source]]
    tips = [
        f'<marker id="{status}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0 0 10 5 0 10z" fill="{colour}"/></marker>'
        for status, colour in COLOURS.items()
    ]
    label = "The states of a job; an arrow has the colour of the status to which it leads"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
            f'font-family="system-ui, \'DejaVu Sans\', sans-serif" font-size="15" role="img" aria-label="{label}">',
            f"<defs>{''.join(tips)}</defs>",
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
            '<g fill="none" stroke-width="1.5">',
            *arrows,
            "</g>",
            *(_box(state) for state in State),
            "</svg>\n",
        ]
    )


def _arrow(source: State, target: State) -> str:
    status = STATUS_OF[target].value
    about = f'data-from="{source}" data-to="{target}" stroke="{COLOURS[status]}" marker-end="url(#{status})"'
    x, y = PLACES[source]
    if source is target:
        top = y - HALF_HEIGHT
        return f'<path {about} d="M{x - 22} {top}C{x - 40} {top - 44} {x + 40} {top - 44} {x + 22} {top}"/>'
    to_x, to_y = PLACES[target]
    length = hypot(to_x - x, to_y - y)
    # To the left of its way, so that the arrow back does not lie on it; the longer, the more, around what is between.
    bend = 22 + length / 14
    middle_x = (x + to_x) / 2 + (to_y - y) / length * bend
    middle_y = (y + to_y) / 2 - (to_x - x) / length * bend
    (x, y), (to_x, to_y) = _edge(x, y, middle_x, middle_y), _edge(to_x, to_y, middle_x, middle_y)
    return f'<path {about} d="M{x:.0f} {y:.0f}Q{middle_x:.0f} {middle_y:.0f} {to_x:.0f} {to_y:.0f}"/>'


def _edge(x: float, y: float, towards_x: float, towards_y: float) -> tuple[float, float]:
    """Where a line from the middle of a box leaves it."""
    along_x, along_y = towards_x - x, towards_y - y
    share = min(
        HALF_WIDTH / abs(along_x) if along_x else float("inf"), HALF_HEIGHT / abs(along_y) if along_y else float("inf")
    )
    return x + along_x * share, y + along_y * share


def _box(state: State) -> str:
    x, y = PLACES[state]
    status = STATUS_OF[state].value
    width = 3 if is_final(state) else 1.5
    return (
        f'<rect x="{x - HALF_WIDTH}" y="{y - HALF_HEIGHT}" width="{2 * HALF_WIDTH}" height="{2 * HALF_HEIGHT}" rx="10" '
        f'fill="{FILLS[status]}" stroke="{COLOURS[status]}" stroke-width="{width}"/>'
        f'<text x="{x}" y="{y + 5}" text-anchor="middle">{state}</text>'
    )


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
