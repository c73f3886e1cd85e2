"""Home: the one service of a whole test, started again where it was when an example ends it."""

import itertools
from pathlib import Path
from typing import Any

import httpx

from service_samples import RECORDS
from torture.spawner import Spawned, Spawner

ADMIN = "model-admin"
CAPACITY_BYTES = 40 * 4096


class Home:
    """Requests by token; a new connection pool for each process, since the old one's are dead."""

    def __init__(self, spawner: Spawner, directory: Path) -> None:
        self._spawner = spawner
        self._flags = ("--data", str(directory), "--capacity", str(CAPACITY_BYTES), "--port", "0")
        self._numbers = itertools.count(1)
        self._service, self._http = self._start()

    def next_number(self) -> int:
        return next(self._numbers)

    def admin(self, method: str, url: str, **arguments: Any) -> httpx.Response:
        return self.ask(ADMIN, method, url, **arguments)

    def ask(self, token: str, method: str, url: str, **arguments: Any) -> httpx.Response:
        """One request. No step of the model may meet a fault of the service."""
        headers = {"authorization": f"Bearer {token}"} | ({"content-type": RECORDS} if "content" in arguments else {})
        answer = self._http.request(method, url, headers=headers, **arguments)
        assert answer.status_code not in (500, 503), answer.text
        return answer

    def restart(self, *, by_kill: bool) -> None:
        self._http.close()
        if by_kill:
            self._service.kill()
        else:
            assert self._service.terminate() == 0
        self._service, self._http = self._start()

    def close(self) -> None:
        self._http.close()
        assert self._service.terminate() == 0
        assert "Traceback" not in self._service.log()

    def _start(self) -> tuple[Spawned, httpx.Client]:
        service = self._spawner.start(*self._flags)
        service.wait_until_listening()
        transport = httpx.HTTPTransport(verify=False)
        return service, httpx.Client(transport=transport, base_url=service.url, timeout=60, trust_env=False)
