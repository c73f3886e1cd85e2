"""What every request waits for before its route runs."""

import inspect
from collections.abc import Iterator

from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from kvcairn_service.app import ROUTERS


def dependencies(dependant: Dependant) -> Iterator[Dependant]:
    for each in dependant.dependencies:
        yield each
        yield from dependencies(each)


def test_no_dependency_of_a_route_takes_a_detour_through_a_thread() -> None:
    routes = [route for module in ROUTERS for route in module.router.routes if isinstance(route, APIRoute)]
    calls = {each.call for route in routes for each in dependencies(route.dependant)}
    assert calls
    assert [call for call in calls if not _is_coroutine(call)] == []


def _is_coroutine(call: object) -> bool:
    return inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(type(call).__call__)
