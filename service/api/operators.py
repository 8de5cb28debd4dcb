"""Who acts, and why: what every act of an operator is told with."""

from typing import Annotated

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field

from service.api.caller import caller_of


class Reason(BaseModel):
    """Why something is done. It is logged, and of a job that ends by it, kept as its error."""

    model_config = ConfigDict(extra="forbid")

    why: Annotated[str, Field(max_length=500, description="For whoever reads the job's end, or the log.")] = ""


def who(request: Request) -> str:
    """Return the name of who makes a request, as the gate has found out."""
    return caller_of(request).name
