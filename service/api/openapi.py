"""What the description of the API says of every route besides its own: errors as problem details, and the key."""

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field

from service.api.routes import ROUTES


class ProblemView(BaseModel):
    """An error (RFC 9457). Some kinds have further members: see docs/api.md."""

    model_config = ConfigDict(extra="allow", title="Problem")

    type: str = Field(examples=["urn:callboard:problem:invalid-request"], description="Stable: the kind of problem.")
    title: str
    status: int
    detail: str = Field(description="For people.")


#: In the place of the errors that FastAPI would describe, which are not those of this API.
PROBLEMS: dict[int | str, dict[str, Any]] = {
    "default": {
        "description": "A problem",
        "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
}


def describe_keys_and_problems(app: FastAPI) -> None:
    """Let the application's description name what its routes share."""
    describe = app.openapi

    def described() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = describe()
            shared = document.setdefault("components", {})
            shared.setdefault("schemas", {})["Problem"] = ProblemView.model_json_schema()
            shared["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer", "description": "cb_..."}}
            for (method, path), rule in ROUTES.items():
                if operation := document["paths"].get(path, {}).get(method.lower()):
                    operation["security"] = [{"key": [rule.scope.value]}] if rule.scope else []
        return app.openapi_schema or {}

    app.openapi = described
