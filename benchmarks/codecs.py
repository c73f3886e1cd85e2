"""Codecs on what caches hold: how far it shrinks, how fast one core packs and unpacks it, and what a 10 Gb/s link makes
of that: a restore, transfer and decoding one after the other, beside that of raw bytes.
"""

import time
from dataclasses import dataclass
from functools import partial

from benchmarks.cache_content import Content, contents
from benchmarks.measure import Figure, Timing, Work, interleave
from kvcairn_protocol.codec import RAW, CodecName, Encoded, decode_into, encode

LINK_BYTES_A_SECOND = 10e9 / 8
TOKENS, TINY_TOKENS = 4_096, 512
TURNS_A_ROUND = 3
NOT_SLOWER = 1.0
CODECS: tuple[CodecName, ...] = ("auto", "raw", "zstd", "shuffle-zstd")


@dataclass(frozen=True, slots=True)
class Measured:
    """One codec on one content: its size, and the processor time that it takes. numbers: the codecs that it chose."""

    raw_bytes: int
    stored_bytes: int
    encode: Timing
    decode: Timing
    numbers: frozenset[int]

    @property
    def share(self) -> float:
        return self.stored_bytes / self.raw_bytes

    @property
    def is_raw(self) -> bool:
        return self.numbers == {RAW}

    @property
    def restore(self) -> float:
        """The time of a restore over the link, in that of raw bytes, which need no decoding."""
        decode_seconds = 0.0 if self.is_raw else self.decode.median
        return self.share + decode_seconds * LINK_BYTES_A_SECOND / self.raw_bytes


def run(*, rounds: int, tiny: bool) -> list[Figure]:
    """A row per content; its value is that of `auto`, what the others would do stands beside it."""
    found = contents(tokens=TINY_TOKENS if tiny else TOKENS)
    return [_figure(content, _measure_all(content, rounds=rounds)) for content in found]


def _measure_all(content: Content, *, rounds: int) -> dict[CodecName, Measured]:
    encoded: dict[CodecName, list[Encoded]] = {}
    target = memoryview(bytearray(max(map(len, content.payloads))))

    def encode_all(codec: CodecName) -> None:
        encoded[codec] = [encode(payload, codec, content.segments) for payload in content.payloads]

    def decode_all(codec: CodecName) -> None:
        for each in encoded[codec]:
            decode_into(target[: each.raw_bytes], each.codec, each.data, content.segments)

    work: dict[str, Work] = {}
    for codec in CODECS:
        work[f"encode {codec}"] = partial(encode_all, codec)
        work[f"decode {codec}"] = partial(decode_all, codec)
    timings = interleave(work, rounds=rounds * TURNS_A_ROUND, clock=time.thread_time)
    return {
        codec: Measured(
            raw_bytes=content.raw_bytes,
            stored_bytes=sum(len(each.data) for each in encoded[codec]),
            encode=timings[f"encode {codec}"],
            decode=timings[f"decode {codec}"],
            numbers=frozenset(each.codec for each in encoded[codec]),
        )
        for codec in CODECS
    }


def _figure(content: Content, measured: dict[CodecName, Measured]) -> Figure:
    auto = measured["auto"]
    chosen = "stays raw" if auto.is_raw else f"shrinks to {auto.share:.2f}"
    others = "; ".join(_described(codec, measured[codec]) for codec in CODECS[2:])
    size = f"{len(content.payloads)} records of {len(content.payloads[0]) / 1e6:.2f} MB"
    return Figure(
        f"{content.name}, codec auto: restore / raw", auto.restore, "×", f"{chosen}; {size}; {others}",
        limit="raw over 10 Gb/s", at_most=NOT_SLOWER,
    )  # fmt: skip


def _described(codec: CodecName, found: Measured) -> str:
    if found.is_raw:
        return f"{codec} stays raw"
    encode, decode = (found.raw_bytes / 1e9 / timing.median for timing in (found.encode, found.decode))
    return f"{codec} {found.share:.2f}, {encode:.2f} GB/s in, {decode:.2f} GB/s out, restore {found.restore:.2f} ×"
