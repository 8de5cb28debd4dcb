from service.cli.up.choices import Port, Ports, named_port, named_url


def test_our_own_url_is_not_named_by_the_user_whatever_its_port():
    assert named_url("redis://:ours@127.0.0.1:4000/0", "ours") is None
    assert named_url("redis://:ours@127.0.0.1:5000/0", "ours") is None
    assert named_url(None, "ours") is None


def test_another_url_is():
    assert named_url("redis://127.0.0.1:4000/0", "ours") == "redis://127.0.0.1:4000/0"
    assert named_url("redis://:theirs@127.0.0.1:4000/0", "ours") == "redis://:theirs@127.0.0.1:4000/0"


def test_a_port_that_was_sourced_leads_back_to_the_wish():
    ports = Ports({"api": Port(wished=8000, chosen=8001)})
    assert ports.wish("api", named=8001, default=8000) == 8000
    assert ports.wish("api", named=9000, default=8000) == 9000
    assert ports.wish("api", named=None, default=8000) == 8000


def test_a_named_port_stays_named_when_it_is_sourced():
    ports = Ports({"api": Port(wished=9000, chosen=9000)})
    assert ports.wish("api", named=9000, default=8000) == 9000


def test_a_setting_counts_as_named_only_where_the_environment_has_it():
    assert named_port({"CALLBOARD_API_PORT": "9000"}, "CALLBOARD_API_PORT", 9000) == 9000
    assert named_port({"CALLBOARD_API_PORT": ""}, "CALLBOARD_API_PORT", 8000) is None
    assert named_port({}, "CALLBOARD_API_PORT", 8000) is None


def test_ports_are_kept_and_a_damaged_file_is_as_good_as_none(tmp_path):
    path = tmp_path / "ports.json"
    Ports({"api": Port(8000, 8001)}).save(path)
    assert Ports.load(path).by_name == {"api": Port(8000, 8001)}
    for content in ("", "{", "[]", '{"api": 3}'):
        path.write_text(content)
        assert Ports.load(path).by_name == {}
