"""Asking a running service: over HTTP or a Unix socket, with errors that end the command in one line."""

import os
import ssl
import time
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Literal, Self, TypeVar

import httpx
import typer
from pydantic import BaseModel, ValidationError

from kvcairn_protocol.messages import Problem
from kvcairn_service.cli_output import fail
from kvcairn_service.cli_values import parse_url
from kvcairn_service.routes.service import API, version
from kvcairn_service.settings import is_token

DEFAULT_URL = "http://127.0.0.1:7420"
TIMEOUT_SECONDS = 60.0
TLS_VARIABLES = ("KVCAIRN_TLS_CA", "KVCAIRN_CLIENT_CERT", "KVCAIRN_CLIENT_KEY")
"""PEM files: whom to trust, the system's CAs without it; and what to show to a service that asks for a certificate."""

UrlFlag = Annotated[
    str | None,
    typer.Option(
        "--url", help="http://HOST:PORT or unix:/PATH of the service.", show_default=f"KVCAIRN_URL or {DEFAULT_URL}"
    ),
]
TokenFlag = Annotated[str | None, typer.Option("--token", help="Bearer token.", show_default="KVCAIRN_TOKEN")]
JsonFlag = Annotated[bool, typer.Option("--json", help="JSON for machines instead of a table.")]

Model = TypeVar("Model", bound=BaseModel)


class _Greeting(BaseModel):
    """What a service of any version says of itself."""

    name: Literal["kvcairn"]
    version: str
    api: int


class Asker:
    """One command's connection to a service; a context manager."""

    def __init__(self, url: str | None, token: str | None) -> None:
        self.url = url or os.environ.get("KVCAIRN_URL") or DEFAULT_URL
        self._http = _client(self.url, _headers(token or os.environ.get("KVCAIRN_TOKEN")))
        self.now_seconds = time.time()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def get(self, path: str, model: type[Model]) -> Model:
        return self.send("GET", path, model)

    def has(self, path: str) -> bool:
        """Whether there is something at `path`."""
        return self._request("GET", path, allowed=(404,)).status_code != httpx.codes.NOT_FOUND

    def delete(self, path: str) -> None:
        self._request("DELETE", path)

    def send(
        self,
        method: str,
        path: str,
        model: type[Model],
        *,
        json: dict[str, Any] | None = None,
        timeout_seconds: float | None = TIMEOUT_SECONDS,
    ) -> Model:
        """The answer as `model`; ends the command if it is a problem or no answer at all.

        timeout_seconds: for each step of the transfer; None for work that takes as long as there is much of it.
        """
        answer = self._request(method, path, json=json, timeout_seconds=timeout_seconds)
        try:
            return model.model_validate_json(answer.content)
        except ValidationError:
            fail(f"what answers at {self.url} is {self._described()}")

    def _described(self) -> str:
        """What sent an answer that this version does not understand, as far as it says so itself."""
        try:
            info = _Greeting.model_validate_json(self._http.get("/v1/service").content)
        except (httpx.HTTPError, ValidationError):
            return "no kvcairn service, or another version of it"
        return (
            f"another version of kvcairn: it speaks version {info.api} of the API (kvcairn {info.version}), "
            f"this command version {API} (kvcairn {version()}); use the service's own"
        )

    def _request(
        self,
        method: str,
        path: str,
        *,
        json: dict[str, Any] | None = None,
        allowed: tuple[int, ...] = (),
        timeout_seconds: float | None = TIMEOUT_SECONDS,
    ) -> httpx.Response:
        try:
            answer = self._http.request(method, path, json=json, timeout=timeout_seconds)
        except httpx.HTTPError as error:
            fail(f"no answer from {self.url}: {error}{_hint(error)}")
        if answer.is_error and answer.status_code not in allowed:
            fail(_detail(answer))
        return answer


def _hint(error: httpx.HTTPError) -> str:
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return "; KVCAIRN_TLS_CA names the file of the CA to trust"
    if "CERTIFICATE_REQUIRED" in str(error) or "HANDSHAKE_FAILURE" in str(error):
        return "; the service asks for a certificate: KVCAIRN_CLIENT_CERT and KVCAIRN_CLIENT_KEY name its files"
    return "" if "[SSL" in str(error) else "; is the service running? (kvcairn serve)"


def _headers(token: str | None) -> dict[str, str]:
    if not token:
        return {}
    if not is_token(token):
        fail("a token is printable ASCII without spaces and line breaks", status=2)
    return {"Authorization": f"Bearer {token}"}


def _client(url: str, headers: dict[str, str]) -> httpx.Client:
    try:
        place = parse_url(url)
    except ValueError as error:
        fail(str(error), status=2)
    transport = None
    if isinstance(place, Path):
        if not place.is_socket():
            fail(f"there is no Unix socket at {place}; is the service running? (kvcairn serve --uds {place})")
        transport, place = httpx.HTTPTransport(uds=str(place)), "http://localhost"
    # No proxy of the environment's: a token that is meant for this machine must not leave it.
    return httpx.Client(
        transport=transport, base_url=place, headers=headers, timeout=TIMEOUT_SECONDS, trust_env=False,
        verify=_trust() if place.startswith("https:") else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
    )  # fmt: skip


def _trust() -> ssl.SSLContext:
    """The system's CAs or that of KVCAIRN_TLS_CA, and this client's certificate where the environment names one."""
    ca, cert, key = (os.environ.get(name) or None for name in TLS_VARIABLES)
    try:
        context = ssl.create_default_context(cafile=ca)
        if cert is not None:
            context.load_cert_chain(cert, key, password=_refuse_passphrase)
    except (OSError, ValueError) as error:
        names = ", ".join(name for name in TLS_VARIABLES if os.environ.get(name))
        fail(f"{names}: no usable PEM files: {error}", status=2)
    return context


def _refuse_passphrase() -> str:
    raise ValueError("the key is encrypted, and nobody is asked for a passphrase")


def _detail(answer: httpx.Response) -> str:
    try:
        problem = Problem.model_validate_json(answer.content)
    except ValidationError:
        return f"{answer.status_code} {answer.reason_phrase}"
    return f"{problem.status} {problem.title}: {problem.detail}"
