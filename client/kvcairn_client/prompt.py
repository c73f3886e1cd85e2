"""Check that an input is one prompt that can be prefilled block by block."""

import numpy as np
import numpy.typing as npt
import torch

from kvcairn_client.errors import PromptNotSupported

INTEGERS = (torch.int64, torch.int32)


def check_prompt(input_ids: object, *, vocab_size: int) -> npt.NDArray[np.int64]:
    """The token ids of one unpadded prompt, [tokens], from a tensor [1, tokens] of int64 or int32.

    PromptNotSupported for anything else, with what was found.
    """
    if not isinstance(input_ids, torch.Tensor):
        raise PromptNotSupported(f"input_ids is a torch tensor [1, tokens]; found a {type(input_ids).__name__}")
    if input_ids.dtype not in INTEGERS:
        raise PromptNotSupported(f"input_ids holds int64 or int32 token ids; found {input_ids.dtype}")
    shape = tuple(input_ids.shape)
    if len(shape) != 2 or shape[0] != 1:
        raise PromptNotSupported(f"takes one prompt at a time, without padding: [1, tokens]; found {list(shape)}")
    if not shape[1]:
        raise PromptNotSupported("the prompt is empty: at least one token is needed, else there are no logits")
    tokens: npt.NDArray[np.int64] = input_ids[0].to(device="cpu", dtype=torch.int64).numpy()
    if tokens.min() < 0 or tokens.max() >= vocab_size:
        found = f"{tokens.min()} to {tokens.max()}"
        raise PromptNotSupported(f"token ids lie in [0, {vocab_size}), the model's vocabulary; found {found}")
    return tokens
