import re

import pytest

from service.state import states
from service.state.states import STATUS_OF, TRANSITIONS, State, Status, is_final


@pytest.mark.parametrize("state", State)
def test_every_state_has_a_status_and_a_row(state):
    assert STATUS_OF[state] in Status
    assert state in TRANSITIONS
    assert TRANSITIONS[state] <= set(State)


def test_final_states_are_left_by_a_replay_only_and_are_the_ones_that_clients_stop_at():
    final = {state for state in State if is_final(state)}
    assert TRANSITIONS[State.SUCCEEDED] == TRANSITIONS[State.CANCELLED] == set()
    assert TRANSITIONS[State.DEAD] == {State.PENDING, State.SCHEDULED}
    assert final == {State.SUCCEEDED, State.DEAD, State.CANCELLED}
    assert {STATUS_OF[state] for state in final} == {Status.SUCCEEDED, Status.FAILED}
    assert not {Status.SUCCEEDED, Status.FAILED} & {STATUS_OF[state] for state in set(State) - final}


def _reachable(start):
    seen, ahead = set(), [start]
    while ahead:
        state = ahead.pop()
        if state not in seen:
            seen.add(state)
            ahead += TRANSITIONS[state]
    return seen


def test_every_state_is_reached_from_a_send():
    assert _reachable(State.SCHEDULED) == set(State)
    assert _reachable(State.PENDING) == set(State)


@pytest.mark.parametrize("state", [state for state in State if not is_final(state)])
def test_every_job_can_still_end_in_any_way(state):
    assert {State.SUCCEEDED, State.DEAD, State.CANCELLED} <= _reachable(state)


def test_only_what_a_worker_gives_back_or_an_operator_moves_or_replays_waits_for_its_first_run_again():
    into = {state: {source for source in State if state in TRANSITIONS[source]} for state in State}
    assert into[State.SCHEDULED] == {State.SCHEDULED, State.PENDING, State.WAITING, State.RUNNING, State.DEAD}
    assert into[State.PENDING] == {State.PENDING, State.SCHEDULED, State.WAITING, State.RUNNING, State.DEAD}


def test_the_picture_in_the_docstring_is_the_table():
    drawn = {
        State(source): {State(target) for target in re.findall(r"[a-z]+", targets)}
        for source, targets in re.findall(r"^ *([a-z]+) +──► (.+)$", states.__doc__ or "", re.MULTILINE)
    }
    final = {State(name) for name in re.findall(r"^ *([a-z]+) +final$", states.__doc__ or "", re.MULTILINE)}
    assert drawn | {state: set() for state in final} == {state: set(targets) for state, targets in TRANSITIONS.items()}


def test_a_table_can_not_be_changed_at_run_time():
    with pytest.raises(TypeError):
        TRANSITIONS[State.DEAD] = frozenset({State.RUNNING})  # type: ignore[index]
