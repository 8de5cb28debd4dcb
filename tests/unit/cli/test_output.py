import io

from service.cli.up.output import Output, Tail, last_lines


def test_lines_carry_the_name_aligned_and_without_colour_in_a_file():
    stream = io.StringIO()
    Output(width=9, stream=stream).line("email", "ready")
    assert stream.getvalue() == "email     | ready\n"


def test_a_tail_shows_whole_lines_and_all_of_them_at_the_end(tmp_path):
    stream, log = io.StringIO(), tmp_path / "api.log"
    log.write_bytes(b"one\ntwo \xff\nhalf")
    tail = Tail(Output(width=3, stream=stream))
    tail.add("api", log)
    tail.start()
    tail.stop()
    assert stream.getvalue() == "api | one\napi | two \ufffd\n"


def test_a_terminal_that_is_gone_stops_nothing():
    stream = io.StringIO()
    output = Output(width=3, stream=stream)
    stream.close()
    output.line("api", "ready")


def test_last_lines(tmp_path):
    (tmp_path / "log").write_text("".join(f"{number}\n" for number in range(100)))
    assert last_lines(tmp_path / "log", 2) == "98\n99"
    assert last_lines(tmp_path / "missing") == ""
