"""The application: routers, problem details, and what they share."""

from fastapi import FastAPI

from service import __version__
from service.access.audit import AuditLog
from service.access.keys import KeyStore
from service.api import (
    actors,
    audit,
    batches,
    dead_letters,
    health,
    job_acts,
    job_lists,
    jobs,
    metrics,
    queues,
    schedules,
    sends,
    streams,
    task_queue,
    timelines,
    workers,
)
from service.api.auditing import Auditing
from service.api.authenticate import KeyAuthentication, KeysWhereGiven
from service.api.body_limit import BodyLimit
from service.api.followers import Followers
from service.api.gate import Authentication, Gate, anybody
from service.api.health import Health
from service.api.leaving import Leaving
from service.api.lines import Lines
from service.api.metrics import Measured, Requests
from service.api.openapi import PROBLEMS, describe_keys_and_problems
from service.api.problems import add_problem_handlers
from service.api.routes import ROUTES, Page
from service.api.rules import check_all_routes_have_rules
from service.api.sending import Sender
from service.api.this_machine import OnlyThisMachine
from service.api.waits import Waits
from service.broker import RedisBroker
from service.schedules.book import ScheduleBook
from service.schedules.code_table import load_table
from service.settings import MAX_BODY_BYTES, get_settings
from service.state.database import engine_for
from service.state.history import History
from service.tasks.queue import TaskQueue

#: In this order: a path that is written out stands before a template that it would fit.
RESOURCES = (
    sends,
    batches,
    job_lists,
    jobs,
    job_acts,
    timelines,
    streams,
    dead_letters,
    queues,
    workers,
    actors,
    task_queue,
    health,
    schedules,
    metrics,
    audit,
)


def create_app() -> FastAPI:
    """Build the application that the settings describe. Connects when the first request needs it.

    Raises SettingsError.
    """
    settings = get_settings()
    settings.require_redis_url()
    engine = engine_for(settings.require_database_url())
    from service.actors import broker

    book = ScheduleBook(broker, load_table(settings.schedules), engine)
    # Keys have connections of their own: reads that hang must not keep a key from being checked.
    access = engine_for(settings.require_database_url())
    keys = KeyAuthentication(
        KeyStore(access),
        outage_seconds=settings.api_key_outage_seconds,
        rate_per_second=settings.api_rate_per_second,
        burst=settings.api_rate_burst,
    )
    is_open = settings.api_access == "open"
    app = build_app(
        broker,
        History(engine, broker),
        settings.api_max_body_bytes,
        book=book,
        authenticate=KeysWhereGiven(keys) if is_open else keys,
        public=frozenset(map(Page, settings.public_pages)),
        audit_log=AuditLog(access),
    )
    if is_open:
        app.add_middleware(OnlyThisMachine)
    return app


def build_app(
    broker: RedisBroker,
    history: History,
    max_body_bytes: int = MAX_BODY_BYTES,
    *,
    book: ScheduleBook | None = None,
    authenticate: Authentication = anybody,
    public: frozenset[Page] = frozenset(),
    audit_log: AuditLog | None = None,
) -> FastAPI:
    """Build the application on a broker, whose actors are the types of jobs, and a history.

    book: its schedules. Left out, there are none, and none can be stored.
    authenticate: who a request comes from. Left out, everybody may do everything, as a test wants it.
    audit_log: where operators' acts are written down.
    """
    app = FastAPI(
        title="Callboard",
        version=__version__,
        description="Background jobs: send, follow, repair.",
        redirect_slashes=False,
        responses=PROBLEMS,
    )
    app.state.broker = broker
    app.state.sender = Sender(broker)
    app.state.history = history
    app.state.tasks = TaskQueue(broker, history)
    app.state.lines = Lines.make()
    app.state.leaving = Leaving()
    app.state.followers = Followers(history, app.state.lines.reads, app.state.leaving)
    app.state.waits = Waits(history.endings, app.state.lines.reads, app.state.leaving)
    app.state.schedules = book or ScheduleBook(broker, (), None)
    app.state.health = Health(broker, history)
    app.state.requests = Requests()
    app.state.audit_log = audit_log
    # The last that is added is the outermost.
    if audit_log is not None:
        app.add_middleware(Auditing, log=audit_log)
    app.add_middleware(BodyLimit, max_bytes=max_body_bytes)
    add_problem_handlers(app)
    for resource in RESOURCES:
        app.include_router(resource.router)
    check_all_routes_have_rules(app, ROUTES)
    describe_keys_and_problems(app)
    # The last is the outermost: what does not pass the gate is not read, and counted all the same.
    app.add_middleware(Gate, table=dict(ROUTES), authenticate=authenticate, public=public)
    app.add_middleware(Measured, requests=app.state.requests)
    return app
