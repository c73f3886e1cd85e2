"""One inference server of the demo: a process with the model, told on its standard input what to prefill.

    {"way": "cold", "prompt": "…"}                                  an uninterrupted run without kvcairn: the oracle
    {"way": "cached", "prompt": "…", "url": "…", "token": "…"}      CachedPrefill, with fresh pools

It answers in JSON lines: progress, then figures and a digest, so that two servers compare without sharing memory.
"""

import hashlib
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from transformers import DynamicCache

from examples.small_model import MODEL_ID, digest, small_model, tokenize
from kvcairn_client.client import Client
from kvcairn_client.transformers import CachedPrefill

BLOCK_TOKENS = 512
LIVE_GROUPS = ("buffer_kv", "buffer_gate", "compressed_kv", "overlap_kv", "overlap_gate")


def say(**answer: Any) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def progress(done_tokens: int, total_tokens: int) -> None:
    say(done=done_tokens, total=total_tokens)


def cold(model: Any, prompt: str) -> dict[str, Any]:
    """Block by block over the model's own cache; nothing of kvcairn takes part."""
    ids = tokenize(prompt)
    cache, start = DynamicCache(config=model.config), time.perf_counter()
    with torch.inference_mode():
        for at in range(0, ids.shape[1], BLOCK_TOKENS):
            stop = min(at + BLOCK_TOKENS, ids.shape[1])
            positions = torch.arange(at, stop)[None]
            output = model(ids[:, at:stop], cache=cache, use_cache=True, position_ids=positions)
            progress(stop, ids.shape[1])
    return {"seconds": time.perf_counter() - start, "digest": digest_of(cache, output.logits)}


def cached(model: Any, prompt: str, *, url: str, token: str) -> dict[str, Any]:
    """Restore what the service has, compute the rest, and persist it."""
    with Client(url, token=token) as client, CachedPrefill(model, client, model_id=MODEL_ID) as prefill:
        start = time.perf_counter()
        result = prefill(tokenize(prompt), on_block=progress)
        seconds = time.perf_counter() - start
        prefill.flush()
    report = result.report
    return {
        "seconds": seconds,
        "digest": digest_of(result.cache, result.logits),
        "hit_tokens": report.hit_tokens,
        "replayed_tokens": report.replayed_tokens,
        "computed_tokens": report.computed_tokens,
    }


def digest_of(cache: Any, logits: torch.Tensor) -> str:
    """SHA-256 over the logits and every live tensor of the cache, by name, shape, dtype and bits."""
    total = hashlib.sha256(digest(logits).encode())
    for name, tensor in sorted(live_tensors(cache), key=lambda pair: pair[0]):
        total.update(f"{name} {tuple(tensor.shape)} {tensor.dtype} {digest(tensor)}\n".encode())
    return total.hexdigest()


def live_tensors(cache: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor that the next forward call would read."""
    for index, layer in enumerate(cache.layers):
        yield f"{index}.window", layer.keys
        for group in LIVE_GROUPS:
            for name, tensor in getattr(layer, group, {}).items():
                if tensor is not None:
                    yield f"{index}.{group}.{name}", tensor


def main() -> None:
    warnings.filterwarnings("ignore")
    model = small_model()
    ways: dict[str, Callable[..., dict[str, Any]]] = {"cold": cold, "cached": cached}
    say(ready=True)
    for line in sys.stdin:
        question = json.loads(line)
        say(result=ways[question.pop("way")](model, **question))


if __name__ == "__main__":
    main()
