"""The application: the one place where stores, registries, routes and wrappers are put together."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from kvcairn_protocol.errors import KvcairnError
from kvcairn_service.admission import Admission
from kvcairn_service.audit import AuditLog
from kvcairn_service.audited import Audited
from kvcairn_service.auth import Gate
from kvcairn_service.browsers import Shield
from kvcairn_service.counters import Counters
from kvcairn_service.docs_page import add_docs_page
from kvcairn_service.encryption import Encryption
from kvcairn_service.kept_pins import load_pins
from kvcairn_service.layouts import Layouts
from kvcairn_service.memory import MemoryBudget
from kvcairn_service.metrics import Metrics
from kvcairn_service.openapi import document_of
from kvcairn_service.pins import Pins
from kvcairn_service.problems import answer_http_exception, answer_kvcairn_error, answer_validation_error
from kvcairn_service.routes import layouts, pins, prefixes, purge, record, records, stats, tenants
from kvcairn_service.routes import service as service_routes
from kvcairn_service.settings import Settings
from kvcairn_service.standing import standing_tokens
from kvcairn_service.state import Phase, Service, sweep_orphans
from kvcairn_service.stores import Stores, open_stores
from kvcairn_service.sweeps import run_sweeps
from kvcairn_service.tenants import Tenants
from kvcairn_service.tls import make_tls
from kvcairn_service.tokens import Tokens
from kvcairn_service.trace import Trace
from kvcairn_storage.prefixes import PrefixStore

DESCRIPTION = """A prefix-cache store for hybrid-attention language models: prefill once, restore everywhere.

Formats of layouts, keys and records: docs/wire.md."""

ROUTERS = (service_routes, layouts, prefixes, pins, records, record, stats, tenants, purge)


def create_app(settings: Settings) -> FastAPI:
    """Open the data directory and compose the application on it; StorageError where the directory cannot be had.

    The application closes the store when its lifespan ends.
    """
    return build_app(open_service(settings))


def open_service(settings: Settings) -> Service:
    """Open the data directory's store and what it keeps of tenants, tokens and layouts."""
    stores = open_stores(settings)
    try:
        return compose(settings, stores)
    except BaseException:
        stores.records.close()
        raise


def compose(settings: Settings, stores: Stores) -> Service:
    """A service on open stores."""
    tenants = Tenants(stores.documents)
    kept = load_pins(stores.documents, now=time.time())
    encryption = Encryption(stores.ring, tenants, file=settings.encryption_key_file)
    store = PrefixStore(
        stores.records, capacity_bytes=stores.capacity_bytes, pins=[pin for _, pin in kept], ciphers=encryption
    )
    return Service(
        settings=settings,
        records=stores.records,
        store=store,
        encryption=encryption,
        tenants=tenants,
        tokens=Tokens(stores.documents),
        layouts=Layouts(stores.documents, max_layouts=settings.max_layouts),
        pins=Pins(
            stores.documents,
            store,
            [each for each, _ in kept],
            max_pins=settings.max_pins,
            max_seconds=settings.max_pin_seconds,
        ),
        counters=Counters(),
        budget=MemoryBudget(settings.upload_memory_bytes, is_shared=lambda: tenants.are_several),
        generation=stores.generation,
        fault=stores.fault,
        standing=standing_tokens(settings),
        audit=AuditLog(settings.audit_log),
        tls=make_tls(settings),
    )


def build_app(service: Service) -> FastAPI:
    """Routes and wrappers around a service; the outermost wrapper comes last."""
    app = FastAPI(
        title="kvcairn",
        version=service_routes.version(),
        description=DESCRIPTION,
        lifespan=_lifespan,
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
    )
    metrics = Metrics(service)
    app.state.service, app.state.metrics = service, metrics
    for module in ROUTERS:
        app.include_router(module.router)
    app.add_exception_handler(KvcairnError, answer_kvcairn_error)
    app.add_exception_handler(HTTPException, answer_http_exception)
    app.add_exception_handler(RequestValidationError, answer_validation_error)
    app.add_middleware(Admission, service=service)
    app.add_middleware(Gate, service=service)
    app.add_middleware(Audited, service=service)
    app.add_middleware(Trace, observe=metrics.observe)
    app.add_middleware(Shield)
    app.openapi = document_of(app)  # type: ignore[method-assign]
    add_docs_page(app)
    return app


@contextlib.asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    service: Service = app.state.service
    async with contextlib.AsyncExitStack() as at_the_end:
        at_the_end.callback(service.audit.close)
        at_the_end.push_async_callback(asyncio.to_thread, service.store.close)
        at_the_end.push_async_callback(asyncio.to_thread, service.close_threads)
        await sweep_orphans(service)
        at_the_end.push_async_callback(_cancelled, asyncio.create_task(run_sweeps(service)))
        service.phase = Phase.SERVING
        yield
        service.phase = Phase.DRAINING


async def _cancelled(task: "asyncio.Task[None]") -> None:
    """End a task, and wait until it has; however it ends, what comes after is done."""
    task.cancel()
    await asyncio.wait([task])
