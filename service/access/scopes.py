"""What a key may do, and who a request comes from."""

from dataclasses import dataclass
from enum import StrEnum


class Scope(StrEnum):
    """A kind of act. Scopes stand beside one another: `operate` does not hold `read`. Only ADMIN holds all."""

    SUBMIT = "submit"  # send jobs
    READ = "read"  # see jobs, queues, workers, schedules
    OPERATE = "operate"  # cancel, retry, pause, replay, delete
    ADMIN = "admin"  # everything, and the audit log


@dataclass(frozen=True, slots=True)
class Caller:
    """Who a request comes from. `key_id` is None in open mode; `tenant` is None for who works for all tenants."""

    name: str
    scopes: frozenset[Scope]
    key_id: str | None = None
    tenant: str | None = None

    def has(self, scope: Scope) -> bool:
        """Say whether the caller may do acts of this kind."""
        return scope in self.scopes or Scope.ADMIN in self.scopes

    def may_see(self, tenant: str | None) -> bool:
        """Say whether a job of this tenant is there for the caller: one of another tenant is not found."""
        return self.tenant is None or self.tenant == tenant


#: Whoever asks an API without keys, which answers on this machine only.
ANYBODY = Caller("anybody", frozenset({Scope.ADMIN}))
