"""What a job is called with: one JSON object, checked against one pydantic model, at both ends."""

from service.payload.contract import PayloadContract, check_json
from service.payload.key_template import KeyTemplate

__all__ = ["KeyTemplate", "PayloadContract", "check_json"]
