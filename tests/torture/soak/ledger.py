"""Ledger: what the clients of one service process were answered, to be compared with what that says of itself.

Shared by all clients of a soak; thread-safe. A request whose client left before the answer's end counts as cut: what it
was counted as is open, that it was counted is not.
"""

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

TEMPLATES = {
    "records": "/v1/records/{layout}/{kind}/{key}",
    "layouts": "/v1/layouts/{fingerprint}",
    "tenants": "/v1/tenants/{name}",
    "tokens": "/v1/tenants/{name}/tokens",
}
Sample = tuple[str, dict[str, str], float]


def template(path: str) -> str:
    """The route that a path belongs to, as the metrics name it."""
    parts = path.strip("/").split("/")
    if len(parts) < 3 or parts[1] not in TEMPLATES:
        return path
    return TEMPLATES["tokens" if parts[-1] == "tokens" else parts[1]]


@dataclass(slots=True)
class Ledger:
    """answered: by (method, route, status). cut: by (method, route). sent_bytes: of whole bodies of records."""

    answered: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    cut: Counter[tuple[str, str]] = field(default_factory=Counter)
    sent_bytes: int = 0
    received_bytes: int = 0
    cut_bytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, method: str, path: str, status: int) -> None:
        with self._lock:
            self.answered[method, template(path), status] += 1

    def note_cut(self, method: str, path: str) -> None:
        with self._lock:
            self.cut[method, template(path)] += 1

    def note_bytes(self, *, sent: int = 0, received: int = 0, cut: int = 0) -> None:
        """sent, received: seen from the service. cut: of bodies that did not come to their end, at most."""
        with self._lock:
            self.sent_bytes, self.received_bytes = self.sent_bytes + sent, self.received_bytes + received
            self.cut_bytes += cut

    def faults(self, text: str) -> list[str]:
        """Where /metrics, read when all is quiet, differs from this."""
        faults = self._miscounted(text)
        for name, least in (("sent", self.sent_bytes), ("received", self.received_bytes)):
            found = total(text, f"kvcairn_{name}_bytes_total")
            if not least <= found <= least + self.cut_bytes:
                faults.append(f"{name}: {found} bytes, by the clients {least} and up to {self.cut_bytes} cut")
        for name in ("requests_in_flight", "fetches_in_flight", "held_records", "upload_memory_bytes"):
            found = total(text, f"kvcairn_{name}")
            if found != (name == "requests_in_flight"):  # the one that asks
                faults.append(f"kvcairn_{name} is {found} while nothing goes on")
        return faults

    def _miscounted(self, text: str) -> list[str]:
        told: Counter[tuple[str, str, int]] = Counter()
        for _, labels, value in samples(text, "kvcairn_request_duration_seconds_count"):
            told[labels["method"], labels["route"], int(labels["status"])] += int(value)
        faults = []
        for method, route in {key[:2] for key in (*told, *self.answered)} - {("GET", "/metrics")}:
            mine = {status: count for (*key, status), count in self.answered.items() if tuple(key) == (method, route)}
            theirs = {status: count for (*key, status), count in told.items() if tuple(key) == (method, route)}
            surplus = {status: theirs.get(status, 0) - mine.get(status, 0) for status in {*mine, *theirs}}
            if min(surplus.values()) < 0 or sum(surplus.values()) != self.cut[method, route]:
                faults.append(f"{method} {route}: {theirs}, by the clients {mine} and {self.cut[method, route]} cut")
        return faults


def samples(text: str, name: str) -> Iterator[Sample]:
    """The samples of one metric in the text format; labels without quotes or commas in their values."""
    for line in text.splitlines():
        before, _, value = line.rpartition(" ")
        found, _, labels = before.partition("{")
        if found == name:
            pairs = (pair.split("=") for pair in labels.rstrip("}").split(",") if pair)
            yield name, {label: quoted.strip('"') for label, quoted in pairs}, float(value)


def total(text: str, name: str, **labels: str) -> float:
    """The sum of a metric's samples with these labels."""
    return sum(value for _, found, value in samples(text, name) if labels.items() <= found.items())
