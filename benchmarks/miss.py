"""What a miss costs: a lookup that finds nothing, beside a bare round trip of the same client to the same service."""

from collections.abc import Callable

from benchmarks.lookup import milliseconds
from benchmarks.many_records import BLOCK_TOKENS, one_byte_layout
from benchmarks.measure import Figure, Timing, interleave
from benchmarks.prefixes import Prefix
from examples.service import running_service
from kvcairn_client.address import parse_address
from kvcairn_client.client import Client
from kvcairn_client.connect import Endpoint
from kvcairn_client.control import Control
from kvcairn_client.deadline import Deadline

USUAL_BLOCKS, LONG_BLOCKS = 16, 256
AT_MOST = 1.5
TURNS_A_ROUND = 90


def run(*, rounds: int, tiny: bool) -> list[Figure]:
    """A usual prompt of 8,192 tokens, and a long one, whose keys are a body of 17 KB that somebody has to read.

    Turns are many, for each takes a millisecond or two, and single ones are as long as the machine likes.
    """
    turns = 2 if tiny else rounds * TURNS_A_ROUND
    with running_service("--capacity", "1GiB") as service, Client(service.url) as client:
        usual, long = (_missing(client, blocks) for blocks in (USUAL_BLOCKS, LONG_BLOCKS))
        timings = interleave({"trip": _round_trip(service.url), "usual": usual, "long": long}, rounds=turns)
    trip = timings["trip"]
    return [_figure(timings["usual"], trip, USUAL_BLOCKS), _figure(timings["long"], trip, LONG_BLOCKS)]


def _round_trip(url: str) -> Callable[[], object]:
    """GET /healthz by the client's own control plane: httpx, its transport, its deadline."""
    control = Control(Endpoint(address=parse_address(url), connect_seconds=1.0), {})
    return lambda: control.call("GET", "/healthz", Deadline(2.0, budget="benchmark"))


def _missing(client: Client, blocks: int) -> Callable[[], None]:
    layout = one_byte_layout()
    keys = Prefix(layout, blocks).keys

    def miss() -> None:
        assert client.lookup(layout, keys).history_blocks == 0

    return miss


def _figure(ours: Timing, trip: Timing, blocks: int) -> Figure:
    work = f"lookup that misses, {blocks * BLOCK_TOKENS:,} tokens / round trip"
    detail, limit = f"{blocks} keys: {milliseconds(ours)}", f"GET /healthz {milliseconds(trip)}"
    return Figure(work, ours.median / trip.median, "×", detail, limit=limit, at_most=AT_MOST)
