"""Tells a job that its worker stops, where its actor asks for that."""

from typing import Any, cast

from dramatiq.middleware import Middleware, Shutdown, ShutdownNotifications

from service.broker import RedisBroker


class ShutdownNotices(ShutdownNotifications):
    """Dramatiq's ShutdownNotifications, which interrupts a thread also where the job in it has just ended."""

    def when_draining(self, broker: RedisBroker) -> None:
        """Called once, by the first word that the worker stops: `callboard drain` or SIGTERM."""
        for holdings in list(broker.holdings.values()):
            for delivery in holdings.running():
                if cast("Any", self).should_notify(broker.get_actor(delivery.actor_name), delivery):
                    delivery.interrupt(Shutdown)

    # It keeps no list of threads: who runs is known.
    before_worker_shutdown = Middleware.before_worker_shutdown
    before_process_message = Middleware.before_process_message
    after_process_message = Middleware.after_process_message
    after_skip_message = Middleware.after_skip_message
