"""One inference server of the demo: a process with the model, told over a pipe what to prefill.

It answers with figures and digests only, so that two servers are compared without sharing memory.
"""

import hashlib
import multiprocessing
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Prefilled:
    """What one prefill came to. digest covers the logits and every live tensor of the cache, bit by bit."""

    seconds: float
    digest: str
    hit_tokens: int = 0
    loaded_tokens: int = 0
    replayed_tokens: int = 0
    computed_tokens: int = 0


class Server:
    """The parent's handle on one server process."""

    def __init__(self, name: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), name=name, daemon=True)
        self._process.start()
        self._pipe.recv()

    def cold(self, prompt: str, progress: Progress | None = None) -> Prefilled:
        """An uninterrupted run without kvcairn: the oracle."""
        return self._ask(("cold", prompt), progress)

    def cached(self, prompt: str, *, url: str, token: str, progress: Progress | None = None) -> Prefilled:
        """A run of CachedPrefill with fresh pools, so that what it restores came from the service."""
        return self._ask(("cached", prompt, url, token), progress)

    def close(self) -> None:
        self._pipe.send(None)
        self._process.join(timeout=10)

    def _ask(self, question: tuple[str, ...], progress: Progress | None) -> Prefilled:
        self._pipe.send(question)
        while not isinstance(answer := self._pipe.recv(), Prefilled):
            if progress:
                progress(*answer)
        return answer


def _serve(pipe: Connection) -> None:
    warnings.filterwarnings("ignore")
    from examples.small_model import small_model  # noqa: PLC0415: only this process loads torch

    model = small_model()
    pipe.send("ready")
    while question := pipe.recv():
        way, prompt, *where = question
        run = _cold if way == "cold" else _cached
        pipe.send(run(model, prompt, *where, report=lambda done, total: pipe.send((done, total))))


def _cold(model, prompt: str, *, report: Progress) -> Prefilled:  # type: ignore[no-untyped-def]
    import torch  # noqa: PLC0415
    from transformers import DynamicCache  # noqa: PLC0415

    from examples.small_model import tokenize  # noqa: PLC0415

    ids, block = tokenize(prompt), 512
    cache, start = DynamicCache(config=model.config), time.perf_counter()
    with torch.inference_mode():
        for at in range(0, ids.shape[1], block):
            stop = min(at + block, ids.shape[1])
            positions = torch.arange(at, stop)[None]
            output = model(ids[:, at:stop], past_key_values=cache, use_cache=True, position_ids=positions)
            report(stop, ids.shape[1])
    return Prefilled(time.perf_counter() - start, _digest(cache, output.logits), computed_tokens=ids.shape[1])


def _cached(model, prompt: str, url: str, token: str, *, report: Progress) -> Prefilled:  # type: ignore[no-untyped-def]
    from examples.small_model import MODEL_ID, tokenize  # noqa: PLC0415
    from kvcairn_client.client import Client  # noqa: PLC0415
    from kvcairn_client.transformers import CachedPrefill  # noqa: PLC0415

    with Client(url, token=token) as client, CachedPrefill(model, client, model_id=MODEL_ID) as prefill:
        start = time.perf_counter()
        result = prefill(tokenize(prompt), on_block=report)
        seconds = time.perf_counter() - start
        prefill.flush()
    found = result.report
    return Prefilled(
        seconds, _digest(result.cache, result.logits), found.hit_tokens, found.loaded_tokens, found.replayed_tokens,
        found.computed_tokens,
    )  # fmt: skip


def _digest(cache, logits) -> str:  # type: ignore[no-untyped-def]
    from examples.small_model import digest  # noqa: PLC0415

    total = hashlib.sha256(digest(logits).encode())
    for name, tensor in sorted(_live_tensors(cache)):
        total.update(f"{name} {tuple(tensor.shape)} {tensor.dtype} {digest(tensor)}\n".encode())
    return total.hexdigest()


def _live_tensors(cache) -> Iterator[tuple[str, object]]:  # type: ignore[no-untyped-def]
    for index, layer in enumerate(cache.layers):
        yield f"{index}.window", layer.keys
        for group in ("buffer_kv", "buffer_gate", "compressed_kv", "overlap_kv", "overlap_gate"):
            for name, tensor in getattr(layer, group, {}).items():
                if tensor is not None:
                    yield f"{index}.{group}.{name}", tensor
