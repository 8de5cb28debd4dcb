from service.cli.supervise.backoff import Backoff


def test_what_lived_long_enough_is_replaced_at_once():
    assert not Backoff().is_young(10.0)
    assert Backoff().delay_seconds(0) == 0.0


def test_young_deaths_wait_twice_as_long_each_time_up_to_the_cap():
    assert [Backoff().delay_seconds(deaths) for deaths in range(1, 8)] == [1, 2, 4, 8, 16, 30, 30]
    assert Backoff().delay_seconds(100_000) == 30
