"""What the process of a job hands to its worker is bounded."""

import threading

from service.middleware.answers import MOST_RESULT_BYTES, MOST_TEXT_CHARACTERS, pack_result, unpack


def test_a_result_arrives_as_it_is() -> None:
    assert unpack(pack_result({"a": [1, 2]}, ["sent"])) == (True, {"a": [1, 2]}, ["sent"])


def test_a_result_beyond_the_limit_is_not_sent_and_says_so() -> None:
    packed = pack_result(b"x" * (MOST_RESULT_BYTES + 1), [])
    succeeded, result, _ = unpack(packed)
    assert succeeded
    assert result.startswith("(a result of ")
    assert "store it, and return where it is" in result
    assert len(packed) < 1000


def test_the_text_in_place_of_a_result_is_bounded_too() -> None:
    _, result, _ = unpack(pack_result((threading.Lock(), "x" * 1_000_000), []))
    assert len(result) <= MOST_TEXT_CHARACTERS
