"""The description of the API says of errors and keys what is so."""

from typing import Any

import pytest

from service.api.app import build_app
from service.api.routes import ROUTES
from service.broker import RedisBroker
from service.state.database import engine_for
from service.state.history import History


@pytest.fixture
def document(broker: RedisBroker, database_url: str) -> dict[str, Any]:
    return build_app(broker, History(engine_for(database_url), broker)).openapi()


def test_every_route_answers_errors_as_problems_and_names_its_scope(document: dict[str, Any]) -> None:
    assert document["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    described = {
        (method.upper(), path): operation
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    }
    assert described.keys() <= ROUTES.keys()
    for route, operation in described.items():
        scope = ROUTES[route].scope
        assert operation["security"] == ([{"key": [scope.value]}] if scope else [])
        [schema] = [content["schema"] for content in operation["responses"]["default"]["content"].values()]
        assert schema == {"$ref": "#/components/schemas/Problem"}
        assert "application/problem+json" in operation["responses"]["default"]["content"]
        assert "422" not in operation["responses"]
    assert set(document["components"]["schemas"]["Problem"]["required"]) == {"type", "title", "status", "detail"}
    assert "HTTPValidationError" not in document["components"]["schemas"]
