"""`make demo`: server A prefills a long system prompt, server B restores it, and every byte is compared.

Starts a real service on a temporary directory, with one tenant for each strategy, and two server processes with the
same weights. Exits 0 only if all strategies were byte-identical and the servers went on without the service.
"""

import json
import secrets
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from examples.agent_prompt import system_prompt
from examples.service import running_service

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
class Admin:
    """Speaks to the running service as its admin."""

    http: httpx.Client

    def tenant(self, name: str, strategy: Answer) -> str:
        """Make a tenant with that strategy; returns a token for it."""
        self.http.put(f"/v1/tenants/{name}", json={"strategy": strategy}).raise_for_status()
        made = self.http.post(f"/v1/tenants/{name}/tokens").raise_for_status().json()
        return str(made["token"])

    def stats(self) -> dict[str, Answer]:
        """Every tenant's statistics, by name."""
        found = self.http.get("/v1/stats/all").raise_for_status().json()
        return {tenant["tenant"]: tenant for tenant in found["tenants"]}


@dataclass(slots=True)
class Fleet:
    """Two servers with the same weights, each with a prompt of its own and the digest that a cold run of it had."""

    console: Console
    a: Server
    b: Server
    prompts: tuple[str, str]
    cold: tuple[Answer, ...] = ()

    def run_cold(self) -> None:
        """Both prompts without kvcairn, uninterrupted: what everything else is compared with."""
        with _progress(self.console) as bars:
            self.cold = tuple(
                server.ask(_bar(bars, f"{name}: cold, without kvcairn"), way="cold", prompt=prompt)
                for name, server, prompt in zip("AB", (self.a, self.b), self.prompts, strict=True)
            )

    def is_identical(self, *answers: Answer) -> bool:
        """Whether A's and B's answers have the bits of their cold runs."""
        return [answer["digest"] for answer in answers] == [answer["digest"] for answer in self.cold]


def main() -> int:
    console = Console(width=None if sys.stdout.isatty() else 110)
    system = system_prompt()
    admin_token = secrets.token_urlsafe(32)
    with ExitStack() as stack:
        console.print("[bold]kvcairn demo[/]: one server prefills, the other restores, every byte is compared\n")
        service = stack.enter_context(running_service("--capacity", "2GiB", env={"KVCAIRN_ADMIN_TOKEN": admin_token}))
        headers = {"Authorization": f"Bearer {admin_token}"}
        admin = Admin(stack.enter_context(httpx.Client(base_url=service.url, headers=headers, trust_env=False)))
        console.print(f"service on {service.url}; two servers load the same weights …")
        fleet = Fleet(console, Server(), Server(), (system + QUESTION_A, system + QUESTION_B))
        for server in (fleet.a, fleet.b):
            stack.callback(server.close)
            server.wait_until_ready()
        fleet.run_cold()
        identical = _compare_strategies(fleet, admin, service.url, shared_tokens=len(system))
        _print_statistics(console, admin)
        token = admin.tenant("survivor", STRATEGIES["anchored"])
        service.kill()
        survived = _fail_open(fleet, url=service.url, token=token)
    console.print(f"demo: {identical}/{len(STRATEGIES)} strategies byte-identical")
    return 0 if identical == len(STRATEGIES) and survived else 1


def _compare_strategies(fleet: Fleet, admin: Admin, url: str, *, shared_tokens: int) -> int:
    table = Table(
        "strategy", "state", "history", "hit", "replayed", "computed", "cold", "restored", "", "identical",
        title=f"Server B restores {shared_tokens:,} tokens; state and history: bytes that server A stored",
    )  # fmt: skip
    identical = 0
    with _progress(fleet.console) as bars:
        for name, strategy in STRATEGIES.items():
            access = {"way": "cached", "url": url, "token": admin.tenant(name, strategy)}
            made = fleet.a.ask(_bar(bars, f"A: {name}: prefill"), prompt=fleet.prompts[0], **access)
            stored = admin.stats()[name]
            restored = fleet.b.ask(_bar(bars, f"B: {name}: restore"), prompt=fleet.prompts[1], **access)
            same = fleet.is_identical(made, restored) and restored["hit_tokens"] > 0
            identical += same
            table.add_row(*_row(name, stored, restored, cold_seconds=fleet.cold[1]["seconds"], same=same))
    fleet.console.print(table)
    return identical


def _row(name: str, stored: Answer, restored: Answer, *, cold_seconds: float, same: bool) -> list[str]:
    by_kind = {"history": 0, "state": 0, "window": 0}
    for row in stored["kinds"]:
        by_kind[row["kind"]] += row["stored_bytes"]
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


def _print_statistics(console: Console, admin: Admin) -> None:
    table = Table(
        "tenant", "records", "stored", "charged", "lookups", "asked tokens", "hit tokens",
        title="GET /v1/stats/all",
    )  # fmt: skip
    for name, tenant in admin.stats().items():
        table.add_row(
            name, f"{tenant['records']:,}", f"{tenant['stored_bytes'] / 1e6:.2f} MB",
            f"{tenant['charged_bytes'] / 1e6:.2f} MB", f"{tenant['lookups']:,}", f"{tenant['asked_tokens']:,}",
            f"{tenant['hit_tokens']:,}",
        )  # fmt: skip
    console.print(table)


def _fail_open(fleet: Fleet, *, url: str, token: str) -> bool:
    """The same prompts with the service killed: as fast as without it, and the same bytes."""
    access = {"way": "cached", "url": url, "token": token}
    with _progress(fleet.console) as bars:
        alone = [
            server.ask(_bar(bars, f"{name}: service killed"), prompt=prompt, **access)
            for name, server, prompt in zip("AB", (fleet.a, fleet.b), fleet.prompts, strict=True)
        ]
    same = fleet.is_identical(*alone)
    verdict = "byte-identical" if same else "[bold red]DIFFERENT BYTES[/]"
    seconds, cold = (sum(each["seconds"] for each in some) for some in (alone, fleet.cold))
    fleet.console.print(
        f"service killed: both went on, {verdict}, {seconds:.2f} s together against {cold:.2f} s without kvcairn"
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
