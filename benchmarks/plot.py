"""`python -m benchmarks.plot`: fetch rate and restore time over the length of a prefix, drawn from measured points.

A V4-Flash prefix of 512 to 1,048,576 tokens (4 GB), looked up and fetched, every record verified, against prefill at
rates that are assumptions. What is longer than this machine's memory allows is extrapolated by the rate of the longest
measured prefix, and drawn hollow. Writes the picture, and the table of its points to standard output.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import matplotlib as mpl
import typer
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture

from benchmarks.measure import interleave
from benchmarks.prefixes import Prefix
from examples.service import running_service
from kvcairn_client.budgets import Budgets
from kvcairn_client.client import Client
from kvcairn_protocol.deepseek_v4 import flash

BLOCK_TOKENS = 512
BLOCKS = (1, 4, 16, 64, 256, 1_024, 2_048)
MEASURED_BLOCKS = 1_024
PREFILL_TOKENS_A_SECOND = (5_000, 20_000, 100_000)
BUDGETS = Budgets(fetch_seconds=60.0)
OURS, GRAY, SHADES = "#1f77b4", "#808080", ("#d62728", "#e6863a", "#b8860b")
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none", "svg.hashsalt": "kvcairn", "font.family": "sans-serif", "font.size": 9,
    "text.color": GRAY, "axes.labelcolor": GRAY, "axes.edgecolor": GRAY, "xtick.color": GRAY, "ytick.color": GRAY,
    "axes.spines.top": False, "axes.spines.right": False, "grid.color": GRAY, "grid.alpha": 0.25,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Point:
    """A prefix of `tokens` tokens and the seconds from its lookup to its last verified record."""

    tokens: int
    size_bytes: int
    seconds: float
    is_measured: bool

    @property
    def gigabytes_a_second(self) -> float:
        return self.size_bytes / 1e9 / self.seconds


def main(
    output: Annotated[Path, typer.Option(help="Where the picture goes.")] = Path("docs/fetch-and-restore.svg"),
    rounds: Annotated[int, typer.Option(help="Rounds a length; their median counts.")] = 7,
    measured_blocks: Annotated[int, typer.Option(help="The longest prefix to measure, in blocks.")] = MEASURED_BLOCKS,
) -> None:
    """Measure, draw, and print the table for docs/performance.md."""
    points = extrapolate(measure(measured_blocks, rounds=rounds))
    draw(points, output)
    print(table(points))


def measure(longest_blocks: int, *, rounds: int) -> list[Point]:
    """Store a prefix of each length, each the beginning of the next one, and restore it from the page cache."""
    layout = flash("benchmark")
    points = []
    with running_service("--capacity", "16GiB") as service, Client(service.url, budgets=BUDGETS) as client:
        for blocks in (blocks for blocks in BLOCKS if blocks <= longest_blocks):
            prefix = Prefix(layout, blocks)
            prefix.store(client)
            points.append(_measured(client, prefix, rounds=rounds))
    return points


def _measured(client: Client, prefix: Prefix, *, rounds: int) -> Point:
    timing = interleave({"fetch": lambda: prefix.fetch(client)}, rounds=rounds)["fetch"]
    return Point(prefix.blocks * BLOCK_TOKENS, prefix.payload_bytes, timing.median, is_measured=True)


def extrapolate(measured: list[Point]) -> list[Point]:
    """The measured points, and what longer prefixes would take at the rate of the longest of them."""
    longest = measured[-1]
    longer = [blocks * BLOCK_TOKENS for blocks in BLOCKS if blocks * BLOCK_TOKENS > longest.tokens]
    sizes = [(tokens, longest.size_bytes * tokens // longest.tokens) for tokens in longer]
    rate = longest.size_bytes / longest.seconds
    return [*measured, *(Point(tokens, size, size / rate, is_measured=False) for tokens, size in sizes)]


def table(points: list[Point]) -> str:
    """The points in Markdown, prefill at the assumed rates beside them."""
    rates = [f"prefill at {rate:,} tokens/s" for rate in PREFILL_TOKENS_A_SECOND]
    lines = [f"| tokens | bytes | restore | rate | {' | '.join(rates)} |", "|---" * (4 + len(rates)) + "|"]
    for point in points:
        restore = f"{point.seconds:.3f} s" + ("" if point.is_measured else ", extrapolated")
        prefills = " | ".join(f"{point.tokens / rate:,.2f} s" for rate in PREFILL_TOKENS_A_SECOND)
        size, rate = f"{point.size_bytes / 1e6:,.1f} MB", f"{point.gigabytes_a_second:.2f} GB/s"
        lines.append(f"| {point.tokens:,} | {size} | {restore} | {rate} | {prefills} |")
    return "\n".join(lines)


def draw(points: list[Point], output: Path) -> None:
    """The picture: the same bytes for the same points; no background, and gray text, for light pages and dark ones."""
    with mpl.rc_context(STYLE):
        picture = Picture(figsize=(7.2, 6.0), layout="constrained")
        times, rates = picture.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        _draw_times(times, points)
        _draw_rates(rates, points)
        picture.savefig(output, format="svg", transparent=True, metadata={"Date": None})


def _draw_times(axes: Axes, points: list[Point]) -> None:
    tokens = [point.tokens for point in points]
    for rate, color in zip(PREFILL_TOKENS_A_SECOND, SHADES, strict=True):
        label = f"prefill at {rate:,} tokens/s (assumed)"
        axes.plot(tokens, [count / rate for count in tokens], color=color, linestyle="--", label=label)
    _draw_points(axes, points, [point.seconds for point in points])
    axes.set(yscale="log", ylabel="seconds", title="V4-Flash prefix over loopback TCP, every record verified")
    axes.legend(frameon=False)


def _draw_rates(axes: Axes, points: list[Point]) -> None:
    _draw_points(axes, points, [point.gigabytes_a_second for point in points])
    axes.set(xscale="log", ylabel="GB/s", xlabel="tokens", ylim=(0, None))
    axes.set_xticks([point.tokens for point in points], [f"{point.tokens:,}" for point in points], rotation=20)
    axes.minorticks_off()


def _draw_points(axes: Axes, points: list[Point], values: list[float]) -> None:
    """A line through all points; those that were not measured are hollow."""
    axes.plot([point.tokens for point in points], values, color=OURS)
    for is_measured, face, label in ((True, OURS, "restore, measured"), (False, "none", "restore, extrapolated")):
        chosen = [(p.tokens, value) for p, value in zip(points, values, strict=True) if p.is_measured is is_measured]
        if chosen:
            axes.plot(*zip(*chosen, strict=True), "o", color=OURS, markerfacecolor=face, label=label)
    axes.grid(visible=True)


if __name__ == "__main__":
    typer.run(main)
