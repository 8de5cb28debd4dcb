"""The picture of the states shows the table of transitions."""

import re

from service.state.states import TRANSITIONS, State
from tests.docs.draw_states import ARROWS, PICTURE, draw, part_of


def test_the_picture_of_the_states_is_the_table() -> None:
    svg = PICTURE.read_text(encoding="utf-8")
    drawn = set(re.findall(r'data-from="(\w+)" data-to="(\w+)"', svg))
    table = {(str(part_of(source)), str(part_of(target))) for source in State for target in TRANSITIONS[source]}
    assert drawn == table == set(ARROWS)
    assert svg == draw(), "python -m tests.docs.draw_states"
