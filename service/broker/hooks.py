"""How the broker calls the middleware's hooks: only those that do something, and a check that fails ends the signal."""

from collections.abc import Callable
from typing import Any

from dramatiq.broker import Broker
from dramatiq.middleware import Interrupt, Middleware, MiddlewareError


class Hooks(Broker):
    """The signals of a Dramatiq broker."""

    def __init__(self, middleware: list[Middleware]) -> None:
        self._hooks: dict[str, list[Callable[..., None]]] = {}
        super().__init__(middleware=middleware)

    def emit_before(self, signal: str, *args: Any, **kwargs: Any) -> None:
        """Call the middleware that has this hook. A MiddlewareError ends the signal; others are logged."""
        for hook in self.hooks_of(f"before_{signal}"):
            try:
                hook(self, *args, **kwargs)
            except MiddlewareError:
                raise
            except Exception:
                self.logger.critical("Unexpected failure in before_%s of %r.", signal, hook, exc_info=True)

    def emit_after(self, signal: str, *args: Any, **kwargs: Any) -> None:
        """Call the middleware that has this hook, the last first. Errors are logged."""
        for hook in reversed(self.hooks_of(f"after_{signal}")):
            try:
                hook(self, *args, **kwargs)
            except (Exception, Interrupt):  # a time limit may interrupt a job that has just ended
                self.logger.critical("Unexpected failure in after_%s of %r.", signal, hook, exc_info=True)

    def add_middleware(self, middleware: Middleware, **position: Any) -> None:
        """Add a middleware, as in Dramatiq."""
        super().add_middleware(middleware, **position)
        self._hooks.clear()

    def hooks_of(self, name: str) -> list[Callable[..., None]]:
        """Return the middleware's hooks of this name that do something, in order."""
        # Most middleware has few hooks, and a job meets four signals: only those that do something are called.
        hooks = self._hooks.get(name)
        if hooks is None:
            base = getattr(Middleware, name)
            all_hooks = [getattr(middleware, name) for middleware in self.middleware]
            # A hook may also be an attribute of the object itself, as of one that wraps another middleware.
            hooks = self._hooks[name] = [hook for hook in all_hooks if getattr(hook, "__func__", hook) is not base]
        return hooks
