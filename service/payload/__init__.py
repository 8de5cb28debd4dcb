"""What a job is called with: one JSON object, checked against one pydantic model, at both ends."""

from service.payload.contract import PayloadContract, check_json

__all__ = ["PayloadContract", "check_json"]
