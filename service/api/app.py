"""The application: routers, problem details, and what they share."""

from fastapi import FastAPI

from service import __version__
from service.api import health, jobs, sends
from service.api.body_limit import BodyLimit
from service.api.health import Health
from service.api.lines import Lines
from service.api.problems import add_problem_handlers
from service.api.sending import Sender
from service.broker import RedisBroker
from service.settings import MAX_BODY_BYTES, get_settings
from service.state.database import engine_for
from service.state.history import History


def create_app() -> FastAPI:
    """Build the application that the settings describe. Connects when the first request needs it.

    Raises SettingsError.
    """
    settings = get_settings()
    settings.require_redis_url()
    engine = engine_for(settings.require_database_url())
    from service.actors import broker

    return build_app(broker, History(engine, broker), settings.api_max_body_bytes)


def build_app(broker: RedisBroker, history: History, max_body_bytes: int = MAX_BODY_BYTES) -> FastAPI:
    """Build the application on a broker, whose actors are the types of jobs, and a history."""
    app = FastAPI(
        title="Callboard",
        version=__version__,
        description="Background jobs: send, follow, repair.",
        redirect_slashes=False,
    )
    app.state.broker = broker
    app.state.sender = Sender(broker)
    app.state.history = history
    app.state.lines = Lines.make()
    app.state.health = Health(broker, history)
    app.add_middleware(BodyLimit, max_bytes=max_body_bytes)
    add_problem_handlers(app)
    app.include_router(sends.router)
    app.include_router(jobs.router)
    app.include_router(health.router)
    return app
