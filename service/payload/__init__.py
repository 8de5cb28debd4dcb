"""What a job is called with: one JSON object, checked against one pydantic model, at both ends."""

from service.payload.contract import PayloadContract, check_json
from service.payload.key_template import KeyTemplate
from service.payload.limits import check_is_json, check_size
from service.payload.masking import MASK, Personal, masked, may_hold_personal
from service.payload.versions import ONLY_THE_FIRST, PayloadVersions, Upgrade

__all__ = [
    "MASK",
    "ONLY_THE_FIRST",
    "KeyTemplate",
    "PayloadContract",
    "PayloadVersions",
    "Personal",
    "Upgrade",
    "check_is_json",
    "check_json",
    "check_size",
    "masked",
    "may_hold_personal",
]
