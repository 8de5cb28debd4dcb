"""Messages are stored as Dramatiq encodes them, whichever of the two ways writes or reads them."""

import math

import pytest
from dramatiq.encoder import JSONEncoder, PickleEncoder
from dramatiq.message import Message, set_encoder
from hypothesis import given
from hypothesis import strategies as st

from service.broker.messages import decode_message, encode_message
from service.errors import UnreadableMessage

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
messages = st.builds(
    Message,
    queue_name=st.text(),
    actor_name=st.sampled_from(["email.send", "grüße", "a b"]),
    args=st.lists(json_values, max_size=3).map(tuple),
    kwargs=st.dictionaries(st.text(), json_values, max_size=3),
    options=st.dictionaries(st.text().map("own-{}".format), json_values, max_size=3),
    message_id=st.text(),
    message_timestamp=st.integers(0, 2**53),
)


@given(messages)
def test_the_fast_way_writes_what_dramatiq_writes(message: Message) -> None:
    assert encode_message(message) == message.encode()


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_what_no_json_has_is_not_written(number: float) -> None:
    for arguments in ({"args": (number,), "kwargs": {}}, {"args": (), "kwargs": {"x": [number]}}):
        with pytest.raises(ValueError, match="not JSON compliant"):
            encode_message(Message("default", "act", options={}, **arguments))


@given(messages)
def test_the_fast_way_reads_what_dramatiq_reads(message: Message) -> None:
    read = decode_message(message.encode())
    assert read == Message.decode(message.encode())
    assert type(read.args) is tuple


def test_another_encoder_is_used_for_both() -> None:
    message = Message("default", "act", (1,), {}, {})
    set_encoder(PickleEncoder())
    try:
        assert decode_message(encode_message(message)) == message
        assert encode_message(message) == PickleEncoder().encode(message.asdict())
    finally:
        set_encoder(JSONEncoder())


@pytest.mark.parametrize("wrong", [b"", b"[]", b"5", b"{}", b'{"args": []}', b'{"args": 1, "x": 2}', b"\xff"])
def test_what_is_no_message_is_refused(wrong: bytes) -> None:
    with pytest.raises(UnreadableMessage):
        decode_message(wrong)
