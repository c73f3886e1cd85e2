"""A prompt of 8,200 tokens on the small transformers model: cold prefill beside a restore where a state stands."""

from benchmarks.measure import Figure, interleave
from examples.service import running_service
from examples.small_model import MODEL_ID, small_model, tokenize
from kvcairn_client.client import Client
from kvcairn_client.transformers import CachedPrefill

PROMPT_TOKENS = 8_200
LEAST_SPEEDUP = 10.0


def run(*, rounds: int, tiny: bool) -> list[Figure]:
    prompt = tokenize("You are an agent with tools. ", tokens=1_032 if tiny else PROMPT_TOKENS)
    model = small_model()

    def cold() -> None:
        with CachedPrefill(model, None, model_id=MODEL_ID) as prefill:
            prefill(prompt)

    def restored() -> None:
        with Client(service.url) as client, CachedPrefill(model, client, model_id=MODEL_ID) as prefill:
            report = prefill(prompt).report
        assert report.replayed_tokens == 0, report
        assert report.loaded_tokens == report.hit_tokens == PROMPT_TOKENS // 512 * 512 or tiny, report

    with running_service("--capacity", "1GiB") as service:
        with Client(service.url) as client, CachedPrefill(model, client, model_id=MODEL_ID) as prefill:
            prefill(prompt)
            prefill.flush()
        timings = interleave({"cold": cold, "restored": restored}, rounds=rounds)
    slow, fast = timings["cold"], timings["restored"]
    detail = (
        f"{prompt.shape[1]:,} tokens: cold {slow.median:.3f} s ({slow.spread}), "
        f"restored {fast.median:.3f} s ({fast.spread})"
    )
    return [
        Figure("small model: cold prefill / restored prefill", slow.median / fast.median, "×", detail,
               at_least=LEAST_SPEEDUP)
    ]  # fmt: skip
