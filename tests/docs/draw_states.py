"""Draws the states of a job, and how it goes from one to the other: `python -m tests.docs.draw_states`, from the root.

The states in which a job waits are drawn as one group: what leads from one of them leads from the group. Each single
transition is in the table below the picture.
"""

from pathlib import Path

from service.state.states import STATUS_OF, TRANSITIONS, State, Status, is_final

PICTURE = Path(__file__).parents[2] / "docs" / "pictures" / "states.svg"

WIDTH, HEIGHT = 960, 400
HALF_WIDTH, HALF_HEIGHT = 62, 24
GROUP = "waits"
GROUP_BOX = (30, 50, 280, 300)
PLACES = {
    State.SCHEDULED: (110, 110),
    State.PENDING: (110, 170),
    State.WAITING: (110, 230),
    State.RETRYING: (110, 290),
    State.RUNNING: (520, 200),
    State.SUCCEEDED: (850, 200),
    State.CANCELLED: (850, 90),
    State.DEAD: (850, 310),
}
WHAT_FOR = {
    State.SCHEDULED: "for its time",
    State.PENDING: "for a worker",
    State.WAITING: "for its key",
    State.RETRYING: "to be tried again",
}
#: For each arrow its way, and a word with where that stands.
ARROWS = {
    (GROUP, State.RUNNING): ("M310 185H456", "fetched", (383, 175)),
    (State.RUNNING, GROUP): ("M458 215H314", "fails, given back", (386, 235)),
    (State.RUNNING, State.RUNNING): ("M498 176C478 126 562 126 542 176", "its worker died", (520, 128)),
    (State.RUNNING, State.SUCCEEDED): ("M582 200H784", "", (0, 0)),
    (State.RUNNING, State.CANCELLED): ("M582 190C680 170 700 105 784 98", "cancelled", (700, 165)),
    (State.RUNNING, State.DEAD): ("M582 210C680 230 700 295 784 302", "no attempt left", (775, 255)),
    (GROUP, State.CANCELLED): ("M310 80H784", "cancelled", (520, 70)),
    (GROUP, State.DEAD): ("M310 310H784", "expired, invalid, purged", (520, 302)),
    (State.DEAD, GROUP): ("M788 326H314", "replayed", (520, 345)),
    (GROUP, GROUP): ("M100 350C80 396 180 396 160 352", "moved, or its key is taken", (270, 378)),
}
#: An arrow has the colour of where it leads.
COLOURS = {"pending": "#8a6d1d", "running": "#3c78b4", "succeeded": "#2f7d4f", "failed": "#b04a3c"}
FILLS = {"pending": "#fdf6e3", "running": "#eaf2fb", "succeeded": "#e8f5ec", "failed": "#fbebe8"}


def part_of(state: State) -> State | str:
    """Return what a state is drawn as the end of an arrow."""
    return GROUP if STATUS_OF[state] is Status.PENDING else state


def draw() -> str:
    """Return the picture as SVG."""
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
            _group(),
            '<g fill="none" stroke-width="1.5">',
            *(_arrow(source, target) for source, target in _arrows()),
            "</g>",
            *(_word(*ARROWS[arrow]) for arrow in _arrows()),
            *(_box(state) for state in State),
            "</svg>\n",
        ]
    )


def _arrows() -> list[tuple[State | str, State | str]]:
    return list(dict.fromkeys((part_of(source), part_of(to)) for source in State for to in State if _leads(source, to)))


def _leads(source: State, target: State) -> bool:
    return target in TRANSITIONS[source]


def _arrow(source: State | str, target: State | str) -> str:
    status = "pending" if target == GROUP else STATUS_OF[State(target)].value
    about = f'data-from="{source}" data-to="{target}" stroke="{COLOURS[status]}" marker-end="url(#{status})"'
    return f'<path {about} d="{ARROWS[source, target][0]}"/>'


def _word(_way: str, word: str, place: tuple[int, int]) -> str:
    return f'<text x="{place[0]}" y="{place[1]}" text-anchor="middle" font-size="13" fill="#44546a">{word}</text>'


def _group() -> str:
    x, y, width, height = GROUP_BOX
    about = f'width="{width}" height="{height}" rx="14" fill="#ffffff" stroke="{COLOURS["pending"]}" stroke-width="1.5"'
    words = [
        f'<text x="{PLACES[state][0] + 74}" y="{PLACES[state][1] + 5}" font-size="13" fill="#44546a">{what_for}</text>'
        for state, what_for in WHAT_FOR.items()
    ]
    return "\n".join([f'<rect x="{x}" y="{y}" {about}/>', f'<text x="{x + 18}" y="{y + 24}">{GROUP}</text>', *words])


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
