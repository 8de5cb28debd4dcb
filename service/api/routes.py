"""Which scope each route needs: one table. A route without a row can't be reached, and the application does not start.

A new route is one row here. `for_tenants` says that the route itself shows and touches only what the caller may see
(`caller_of(request).may_see(tenant)`, or a filter by `caller.tenant`); without it a key of a tenant is refused.
"""

from dataclasses import dataclass
from enum import StrEnum

from service.access.scopes import Scope


class Page(StrEnum):
    """Pages that CALLBOARD_API_PUBLIC may open to everybody."""

    DOCS = "docs"
    METRICS = "metrics"
    WORKERS_HEALTH = "workers-health"


@dataclass(frozen=True, slots=True)
class Rule:
    """What a route asks of its caller. Without a scope it is open, as probes are."""

    scope: Scope | None
    page: Page | None = None
    for_tenants: bool = False

    @property
    def is_audited(self) -> bool:
        """Whether the acts of the route belong to the audit log, where its method is none that only reads."""
        return self.scope in (Scope.OPERATE, Scope.ADMIN)


OPEN = Rule(None)
SUBMIT = Rule(Scope.SUBMIT)
READ = Rule(Scope.READ)
OPERATE = Rule(Scope.OPERATE)
ADMIN = Rule(Scope.ADMIN)
TENANTS_SUBMIT = Rule(Scope.SUBMIT, for_tenants=True)
TENANTS_READ = Rule(Scope.READ, for_tenants=True)
TENANTS_OPERATE = Rule(Scope.OPERATE, for_tenants=True)
DOCS = Rule(Scope.READ, Page.DOCS, for_tenants=True)

#: By method and path template, as the router has it. HEAD is asked for as GET.
ROUTES: dict[tuple[str, str], Rule] = {
    ("POST", "/jobs"): TENANTS_SUBMIT,
    ("POST", "/jobs/batch"): TENANTS_SUBMIT,
    ("GET", "/jobs"): TENANTS_READ,
    ("GET", "/jobs/{job_id}"): TENANTS_READ,
    ("GET", "/jobs/{job_id}/timeline"): TENANTS_READ,
    ("GET", "/jobs/{job_id}/events"): TENANTS_READ,
    ("PATCH", "/jobs/{job_id}"): TENANTS_OPERATE,
    ("POST", "/jobs/{job_id}/cancel"): TENANTS_OPERATE,
    ("POST", "/jobs/{job_id}/retry"): TENANTS_OPERATE,
    ("GET", "/queues"): READ,
    ("GET", "/queues/{name}"): READ,
    ("POST", "/queues/{name}/pause"): OPERATE,
    ("POST", "/queues/{name}/resume"): OPERATE,
    ("POST", "/queues/{name}/purge"): OPERATE,
    ("GET", "/workers"): READ,
    ("GET", "/actors"): TENANTS_READ,
    ("GET", "/actors/{name}"): TENANTS_READ,
    ("GET", "/audit"): ADMIN,
    ("GET", "/dead-letters"): TENANTS_READ,
    ("GET", "/dead-letters/{job_id}"): TENANTS_READ,
    ("POST", "/dead-letters/replay"): TENANTS_OPERATE,
    ("POST", "/dead-letters/{job_id}/replay"): TENANTS_OPERATE,
    ("DELETE", "/dead-letters/{job_id}"): TENANTS_OPERATE,
    ("POST", "/api/task-queue"): SUBMIT,
    ("GET", "/api/task-queue"): READ,
    ("GET", "/api/task-queue/{task_id}"): READ,
    ("PATCH", "/api/task-queue/{task_id}"): SUBMIT,
    ("PUT", "/api/task-queue/{task_id}"): SUBMIT,
    ("DELETE", "/api/task-queue/{task_id}"): SUBMIT,
    ("POST", "/api/task-queue/{task_id}/execute"): SUBMIT,
    ("GET", "/schedules"): TENANTS_READ,
    ("POST", "/schedules"): TENANTS_OPERATE,
    ("POST", "/schedules/preview"): TENANTS_READ,
    ("GET", "/schedules/{name}"): TENANTS_READ,
    ("PUT", "/schedules/{name}"): TENANTS_OPERATE,
    ("PATCH", "/schedules/{name}"): TENANTS_OPERATE,
    ("DELETE", "/schedules/{name}"): TENANTS_OPERATE,
    ("POST", "/schedules/{name}/pause"): TENANTS_OPERATE,
    ("POST", "/schedules/{name}/resume"): TENANTS_OPERATE,
    ("POST", "/schedules/{name}/run"): TENANTS_OPERATE,
    ("GET", "/healthz"): OPEN,
    ("GET", "/readyz"): OPEN,
    ("GET", "/ready"): OPEN,
    ("GET", "/metrics"): Rule(Scope.READ, Page.METRICS),
    ("GET", "/api/workers/health"): Rule(Scope.READ, Page.WORKERS_HEALTH),
    ("GET", "/docs"): DOCS,
    ("GET", "/docs/oauth2-redirect"): DOCS,
    ("GET", "/redoc"): DOCS,
    ("GET", "/openapi.json"): DOCS,
}
