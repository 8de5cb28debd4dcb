"""`callboard api`: the HTTP API, served by uvicorn."""

import argparse
import gc
import logging

GRACE_SECONDS = 10
#: A batch makes hundreds of thousands of objects, all of which are needed to its end: looking for garbage among them
#: each 700 takes a quarter of the time of reading it.
OBJECTS_BETWEEN_COLLECTIONS = 50_000


def configure(parser: argparse.ArgumentParser) -> None:
    """`--fd` is for `callboard up`, which chooses the port and keeps it while the API restarts."""
    parser.add_argument("--fd", type=int, default=None, help=argparse.SUPPRESS)


def run(arguments: argparse.Namespace) -> int:
    """Serve until a signal ends it; requests that are under way get ten seconds to finish."""
    from service.cli.stopping import stop_on_signals
    from service.observe.logs import configure_logs
    from service.settings import get_settings

    # uvicorn raises the signal once more when it is done; with this handler in place that is harmless.
    stop = stop_on_signals()
    settings = get_settings()
    configure_logs(settings)
    logging.getLogger("uvicorn.error").addFilter(_without_colours)

    import socket

    import uvicorn

    from service.access.open_mode import check_may_listen
    from service.api.app import create_app
    from service.api.server import Server, give_up_silent_clients

    sockets = None if arguments.fd is None else [socket.socket(fileno=arguments.fd)]
    check_may_listen(settings, str(sockets[0].getsockname()[0]) if sockets else settings.api_host)

    app = create_app()
    config = uvicorn.Config(
        app,
        host=settings.api_host,
        port=settings.api_port,
        log_config=None,
        access_log=False,
        # Who asks is told by the connection: a header of a client's own would make it anybody.
        proxy_headers=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    server = Server(config, app.state.leaving)
    # uvicorn listens to signals only once it runs; one that comes while it loads must not be lost.
    stop_on_signals(server.leave)
    if not stop.is_set():
        listening = sockets or [config.bind_socket()]
        for each in listening:
            give_up_silent_clients(each)
        gc.freeze()  # what is loaded by now stays, and need not be looked through again
        gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
        server.run(sockets=listening)
    return 0


def _without_colours(record: logging.LogRecord) -> bool:
    # uvicorn adds a coloured copy of its messages as a field, which our formats would show.
    vars(record).pop("color_message", None)
    return True
