"""`python -m benchmarks.trace_table`: every strategy at every capacity, as the table of docs/performance.md.

What `trace` leaves out for its time is in here: half an hour on two cores.
"""

from collections.abc import Sequence
from itertools import product

from benchmarks.trace import ANCHORED, PERIODIC, WITHOUT_BOUNDS, ZERO, Replayed, in_processes, name_of
from benchmarks.trace_data import Prompt, distinct_blocks, read_trace
from benchmarks.trace_policies import clairvoyant, least_recently_used
from kvcairn_protocol.layout import Kind
from kvcairn_protocol.strategy import Full, Periodic

SHARES = (0.05, 0.10, 0.25, WITHOUT_BOUNDS)
STRATEGIES = (ANCHORED, Periodic(every_tokens=2048), PERIODIC, ZERO, Full())
HEAD = """\
| capacity | cache | blocks that hit | hit tokens | of them replayed | tokens saved | states kept, of history's bytes | evicted blocks, states |
|---|---|---|---|---|---|---|---|"""  # noqa: E501 - a line of Markdown


def main() -> None:
    prompts = read_trace()
    print(HEAD)
    for line in policy_lines(prompts):
        print(line, flush=True)
    for done in in_processes(list(product(STRATEGIES, SHARES))):
        print(line_of(done), flush=True)


def policy_lines(prompts: Sequence[Prompt]) -> list[str]:
    """The caches that the store stands beside; they keep blocks alone, and whole capacities of them."""
    chains = [prompt.block_ids for prompt in prompts]
    asked, footprint = sum(map(len, chains)), distinct_blocks(prompts)
    policies = (("least recently used", least_recently_used), ("clairvoyant", clairvoyant))
    return [
        f"| {capacity_of(share)} | {name} | {policy(chains, capacity_blocks=int(share * footprint)) / asked:.1%} "
        "| – | – | – | – | – |"
        for (name, policy), share in product(policies, SHARES)
    ]


def line_of(done: Replayed) -> str:
    """One replay's row."""
    tally, kept = done.tally, done.kept_bytes
    blocks, states = (done.evicted_records.get(kind, 0) for kind in (Kind.HISTORY, Kind.STATE))
    cells = (
        capacity_of(done.share),
        name_of(done.strategy),
        f"{tally.hit_rate:.1%}",
        f"{tally.hit_tokens / 1e6:.1f} M",
        f"{tally.replayed_share:.1%}",
        f"{(tally.hit_tokens - tally.replayed_tokens) / 1e6:.1f} M",
        f"{done.kept_states:,}, {kept.get(Kind.STATE, 0) / kept[Kind.HISTORY]:.0%}",
        f"{blocks:,}, {states:,}",
    )
    return f"| {' | '.join(cells)} |"


def capacity_of(share: float) -> str:
    return "without bounds" if share >= 1 else f"{100 * share:.0f} %"


if __name__ == "__main__":
    main()
