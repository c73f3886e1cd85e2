"""`make demo`: server A prefills a long system prompt, server B restores it, and every byte is compared.

Starts a real service on a temporary directory, with one tenant for each strategy, and two server processes with the
same weights. Exits 0 only if all strategies were byte-identical and the servers went on without the service.
"""

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from examples.agent_prompt import system_prompt

ROOT = Path(__file__).parent.parent
STRATEGIES: dict[str, dict[str, Any]] = {
    "full": {"kind": "full"},
    "periodic": {"kind": "periodic", "every_tokens": 2048},
    "zero": {"kind": "zero"},
    "anchored": {"kind": "anchored"},
}
QUESTION_A = "\n\nCustomer: my certificate is gone since the move. What now?"
QUESTION_B = "\n\nCustomer: how often may I export a database on plan C, and who has to agree?"

OnBlock = Callable[[int, int], None]
Answer = dict[str, Any]


class Server:
    """An inference server: another process, with the same weights."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "examples.demo_server"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        )  # fmt: skip

    def wait_until_ready(self) -> None:
        self._read()

    def ask(self, on_block: OnBlock, **question: str) -> Answer:
        """Let it prefill; `on_block` hears of every block until the figures come."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        while "result" not in (answer := self._read()):
            on_block(answer["done"], answer["total"])
        result: Answer = answer["result"]
        return result

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def _read(self) -> Answer:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("a server process ended; its error stands above")
        answer: Answer = json.loads(line)
        return answer


@dataclass(frozen=True, slots=True)
class Service:
    """The running service: where it is, and how to speak to it as its admin."""

    process: "subprocess.Popen[str]"
    url: str
    admin: httpx.Client

    def tenant(self, name: str, strategy: Answer) -> str:
        """Make a tenant with that strategy; returns a token for it."""
        self.admin.put(f"/v1/tenants/{name}", json={"strategy": strategy}).raise_for_status()
        made = self.admin.post(f"/v1/tenants/{name}/tokens").raise_for_status().json()
        return str(made["token"])

    def stats(self) -> dict[str, Answer]:
        """Every tenant's statistics, by name."""
        found = self.admin.get("/v1/stats/all").raise_for_status().json()
        return {tenant["tenant"]: tenant for tenant in found["tenants"]}

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@contextmanager
def running_service() -> Iterator[Service]:
    """A closed service on a free loopback port, with its data in a temporary directory."""
    admin_token = secrets.token_urlsafe(32)
    with tempfile.TemporaryDirectory(prefix="kvcairn-demo-") as data:
        process = subprocess.Popen(
            [sys.executable, "-m", "kvcairn_service", "serve", "--data", data, "--port", "0", "--capacity", "2GiB"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT,
            env=os.environ | {"KVCAIRN_ADMIN_TOKEN": admin_token},
        )  # fmt: skip
        try:
            url = _listening_url(process)
            with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {admin_token}"}) as admin:
                yield Service(process, url, admin)
        finally:
            process.terminate()
            process.wait()


def _listening_url(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(r"listening on (http://\S+)", line):
            return found.group(1)
    raise SystemExit("the service did not start")


def main() -> int:
    console = Console(width=None if sys.stdout.isatty() else 110)
    system = system_prompt()
    with ExitStack() as stack:
        console.print("[bold]kvcairn demo[/]: one server prefills, the other restores, every byte is compared\n")
        service = stack.enter_context(running_service())
        console.print(f"service on {service.url}; two servers load the same weights …")
        servers = [Server(), Server()]
        for server in servers:
            stack.callback(server.close)
            server.wait_until_ready()
        identical = _compare_strategies(console, service, *servers, system=system)
        _print_statistics(console, service)
        survived = _fail_open(console, service, servers[1], system=system)
    console.print(f"demo: {identical}/{len(STRATEGIES)} strategies byte-identical")
    return 0 if identical == len(STRATEGIES) and survived else 1


def _compare_strategies(console: Console, service: Service, a: Server, b: Server, *, system: str) -> int:
    table = Table(
        "strategy", "state", "history", "hit", "replayed", "computed", "cold", "restored", "", "identical",
        title=f"Server B restores {len(system):,} tokens that server A prefilled",
    )  # fmt: skip
    with _progress(console) as bars:
        first = a.ask(_bar(bars, "A: cold, without kvcairn"), way="cold", prompt=system + QUESTION_A)
        oracle = b.ask(_bar(bars, "B: cold, without kvcairn"), way="cold", prompt=system + QUESTION_B)
        identical = 0
        for name, strategy in STRATEGIES.items():
            access = {"way": "cached", "url": service.url, "token": service.tenant(name, strategy)}
            made = a.ask(_bar(bars, f"A: {name}: prefill"), prompt=system + QUESTION_A, **access)
            stored = service.stats()[name]
            restored = b.ask(_bar(bars, f"B: {name}: restore"), prompt=system + QUESTION_B, **access)
            same = (made["digest"], restored["digest"]) == (first["digest"], oracle["digest"])
            same = same and restored["hit_tokens"] > 0
            identical += same
            table.add_row(*_row(name, stored, restored, cold_seconds=oracle["seconds"], same=same))
    console.print(table)
    return identical


def _row(name: str, stored: Answer, restored: Answer, *, cold_seconds: float, same: bool) -> list[str]:
    by_kind = {"history": 0, "state": 0, "window": 0}
    for row in stored["kinds"]:
        by_kind[row["kind"]] += row["raw_bytes"]
    return [
        name,
        f"{(by_kind['state'] + by_kind['window']) / 1e6:.2f} MB",
        f"{by_kind['history'] / 1e6:.2f} MB",
        *(f"{restored[field]:,}" for field in ("hit_tokens", "replayed_tokens", "computed_tokens")),
        f"{cold_seconds:.2f} s",
        f"{restored['seconds']:.2f} s",
        f"{cold_seconds / restored['seconds']:.1f} ×",
        "yes" if same else "[bold red]NO[/]",
    ]


def _print_statistics(console: Console, service: Service) -> None:
    table = Table(
        "tenant", "records", "stored", "charged", "lookups", "asked tokens", "hit tokens",
        title="GET /v1/stats/all",
    )  # fmt: skip
    for name, tenant in service.stats().items():
        table.add_row(
            name, f"{tenant['records']:,}", f"{tenant['stored_bytes'] / 1e6:.2f} MB",
            f"{tenant['charged_bytes'] / 1e6:.2f} MB", f"{tenant['lookups']:,}", f"{tenant['asked_tokens']:,}",
            f"{tenant['hit_tokens']:,}",
        )  # fmt: skip
    console.print(table)


def _fail_open(console: Console, service: Service, server: Server, *, system: str) -> bool:
    """The same prompts with the service killed: as fast as without it, and the same bytes."""
    token = service.tenant("survivor", STRATEGIES["anchored"])
    service.kill()
    with _progress(console) as bars:
        cold = server.ask(_bar(bars, "B: cold, without kvcairn"), way="cold", prompt=system + QUESTION_A)
        access = {"way": "cached", "url": service.url, "token": token}
        alone = server.ask(_bar(bars, "B: service killed"), prompt=system + QUESTION_A, **access)
    same = bool(alone["digest"] == cold["digest"])
    verdict = "byte-identical" if same else "[bold red]DIFFERENT BYTES[/]"
    console.print(
        f"service killed: prefill went on, {verdict}, hit {alone['hit_tokens']} tokens, "
        f"{alone['seconds']:.2f} s against {cold['seconds']:.2f} s without kvcairn"
    )
    return same


def _progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description:28}"), BarColumn(), TextColumn("{task.completed:,.0f} tokens"))
    return Progress(*columns, TimeElapsedColumn(), console=console)


def _bar(bars: Progress, description: str) -> OnBlock:
    task = bars.add_task(description, total=None)
    return lambda done, total: bars.update(task, completed=done, total=total)


if __name__ == "__main__":
    sys.exit(main())
