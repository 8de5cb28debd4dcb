"""The page on deploying says what the code and compose.yaml say. What needs an engine is read, and not run."""

import re
import shlex
from itertools import pairwise

from service.broker.grace import grace_seconds_of, working_seconds_of
from service.cli import _parser  # pyright: ignore[reportPrivateUsage]
from service.queues import QUEUES
from tests.deploy.test_compose import EXAMPLE, FILE
from tests.docs.test_documents import ROOT, table_with
from tests.packaging.dockerfile import stages

PAGE = (ROOT / "docs/deploying.md").read_text()
LINES = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]


def seconds(text: str) -> float:
    return float(text.removesuffix(" s"))


def test_its_sums_are_those_of_the_code() -> None:
    for queue, (limit, grace, working) in table_with("deploying.md", "queue").items():
        assert seconds(limit) == QUEUES[queue].time_limit_seconds
        assert seconds(grace) == grace_seconds_of([queue], None)
        assert seconds(working) == working_seconds_of(seconds(grace))
    for grace, (working,) in table_with("deploying.md", "grace period").items():
        assert seconds(working) == working_seconds_of(seconds(grace))


def test_the_variables_of_the_image_are_as_it_says() -> None:
    image = {name: value for step in stages()[-1] if step.word == "ENV" for name, value in step.pairs.items()}
    documented = {name: value.strip("`") for name, (value, _) in table_with("deploying.md", "variable").items()}
    assert documented == {name: value for name, value in image.items() if name.startswith("CALLBOARD_")}


def test_its_commands_name_what_is_there() -> None:
    arguments = {step.rest.partition("=")[0] for stage in stages() for step in stage if step.word == "ARG"}
    assert LINES
    for line in LINES:
        words = shlex.split(line)
        match words:
            case ["docker", "build", *options, "."]:
                given = [option.partition("=")[0] for flag, option in pairwise(options) if flag == "--build-arg"]
                assert set(given) <= arguments
            case ["docker", "compose", "run", "--rm", service, *command]:
                assert service in FILE["services"]
                _parser().parse_args(command)
            case ["docker", "compose", "up", *options]:
                names = [option for option in options if not option.startswith("-") and "=" not in option]
                assert set(names) <= set(FILE["services"])
            case ["docker", "compose", "down"]:
                pass
            case ["cp", example, ".env"]:
                assert (ROOT / example).is_file()
            case _:
                raise AssertionError(f"who knows whether this works: {line}")


def test_its_ports_and_passwords_are_those_of_compose() -> None:
    for name, port in {"api": 8000, "prometheus": 9090, "grafana": 3000, "redis": 6380}.items():
        assert any(each.startswith(f"127.0.0.1:{port}:") for each in FILE["services"][name]["ports"])
        assert str(port) in PAGE
    assert EXAMPLE
