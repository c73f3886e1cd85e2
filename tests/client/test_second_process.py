"""The proof across processes: what one process stores, another one restores, byte for byte."""

import subprocess
import sys
from pathlib import Path

import torch

from kvcairn_client.client import Client
from kvcairn_client.transformers import CachedPrefill
from serving import running_service, service_environment
from tiny_models import RATIOS, Oracle, differences, make_model, make_prompt, same_bits

PROMPT_TOKENS = 1200
OTHER_PROCESS = """
import sys
import torch
from tiny_models import RATIOS, make_model, make_prompt
from kvcairn_client.client import Client
from kvcairn_client.transformers import CachedPrefill

for dtype in (torch.float32, torch.bfloat16):
    with Client(sys.argv[1]) as client, CachedPrefill(make_model(RATIOS, dtype), client, block_tokens=128) as prefill:
        result = prefill(make_prompt(int(sys.argv[2])))
        assert result.report.hit_tokens == 0, result.report
        assert prefill.flush()
"""


def test_a_second_process_finds_and_restores_what_the_first_one_stored(tmp_path: Path) -> None:
    """Without a model id: both processes come to the same identity by hashing the weights that they hold."""
    environment = service_environment({"PYTHONWARNINGS": "ignore"})
    environment["PYTHONPATH"] += f":{Path(__file__).parent.parent}"
    prompt = torch.cat([make_prompt(PROMPT_TOKENS), make_prompt(50, seed=3)], dim=-1)
    with running_service(tmp_path / "data") as service:
        command = [sys.executable, "-c", OTHER_PROCESS, service.url, str(PROMPT_TOKENS)]
        subprocess.run(command, env=environment, check=True, timeout=150)
        for dtype in (torch.float32, torch.bfloat16):
            model = make_model(RATIOS, dtype)
            with Client(service.url) as client, CachedPrefill(model, client, block_tokens=128) as prefill:
                result = prefill(prompt)
            cache, logits = Oracle(model, step=128).run(prompt)
            assert result.report.state_tokens == PROMPT_TOKENS // 128 * 128
            assert same_bits(result.logits, logits)
            assert differences(result.cache, cache) == []
