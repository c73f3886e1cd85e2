"""An inference server of a fleet, in small: prefills the shared system prompt and one question, and says what it saved.

    KVCAIRN_URL=http://127.0.0.1:7420 python -m examples.fleet_client --name a --question "How do I move a domain?"

The first one computes and stores, every later one restores.
"""

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from examples.agent_prompt import system_prompt
from examples.small_model import MODEL_ID, small_model, tokenize
from kvcairn_client.client import DEFAULT_URL, Client
from kvcairn_client.transformers import CachedPrefill


def main(
    name: Annotated[str, typer.Option(help="What this server calls itself.")] = "server",
    question: Annotated[str, typer.Option(help="What follows the shared prompt.")] = "How do I move a domain?",
    prompt_file: Annotated[Path | None, typer.Option(help="The shared prompt; a built-in one by default.")] = None,
) -> None:
    """Prefill once, restore everywhere. Reads KVCAIRN_URL, KVCAIRN_TOKEN and KVCAIRN_TLS_CA."""
    console = Console()
    shared = prompt_file.read_text() if prompt_file else system_prompt()
    url, token, ca = (os.environ.get(f"KVCAIRN_{variable}") for variable in ("URL", "TOKEN", "TLS_CA"))
    client = Client(url or DEFAULT_URL, token=token, tls_ca=ca)
    with client, CachedPrefill(small_model(), client, model_id=MODEL_ID) as prefill, Progress(console=console) as bars:
        task = bars.add_task(f"{name}: prefill", total=None)
        result = prefill(
            tokenize(f"{shared}\n\nCustomer: {question}"),
            on_block=lambda done, total: bars.update(task, completed=done, total=total),
        )
        prefill.flush()
    report = result.report
    console.print(
        f"{name}: {report.hit_tokens:,} tokens were stored, {report.replayed_tokens:,} of them replayed; "
        f"{report.computed_tokens:,} computed; {report.seconds:.2f} s"
    )


if __name__ == "__main__":
    typer.run(main)
