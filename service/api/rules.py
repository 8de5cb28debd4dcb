"""Finds the rule of a request: before it reaches the router, and without asking which route the router would take."""

from collections.abc import Iterable, Mapping

from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from starlette.routing import compile_path
from starlette.types import Scope

from service.api.routes import Rule
from service.errors import DeclarationError

READING = frozenset({"GET", "HEAD"})


class Rules:
    """A table of routes that can be asked. Where several templates fit a path, all their rules have to be met: so it
    does not matter in which order the router looks at them."""

    def __init__(self, table: Mapping[tuple[str, str], Rule]) -> None:
        self._templates = [(compile_path(path)[0], method, rule) for (method, path), rule in table.items()]
        #: The paths without a parameter, which are most of what is asked for.
        self._literal = {
            (method, path): self._look(method, path) for method, path in table if "{" not in path and "}" not in path
        }

    def of(self, method: str, path: str) -> tuple[Rule, ...]:
        """Return the rules of all routes that could answer; none where no route could."""
        method = "GET" if method == "HEAD" else method
        return self._literal.get((method, path)) or self._look(method, path)

    def methods_of(self, path: str) -> list[str]:
        """Return the methods that a path can be asked with."""
        return sorted({method for template, method, _ in self._templates if template.match(path)})

    def _look(self, method: str, path: str) -> tuple[Rule, ...]:
        return tuple(rule for template, of, rule in self._templates if of == method and template.match(path))


def path_of(scope: Scope) -> str:
    """Return the path that the router will look at: where the application is mounted, that below its place."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    below = path.removeprefix(root)
    # /place is none of /pla.
    return below if below.startswith("/") or not below else path


def routes_of(app: FastAPI) -> Iterable[tuple[str, str]]:
    """Return method and path template of all routes of an application."""
    for route in iter_route_contexts(app.routes):
        for method in route.methods or {"*"}:
            if method != "HEAD":
                yield method, route.path or repr(route)


def check_all_routes_have_rules(app: FastAPI, table: Mapping[tuple[str, str], Rule]) -> None:
    """Raise DeclarationError for a route without a rule, before somebody looks for the reason of a 404."""
    if missing := sorted(set(routes_of(app)) - table.keys()):
        names = ", ".join(f"{method} {path}" for method, path in missing)
        raise DeclarationError(f"These routes have no row in service/api/routes.py: {names}")
