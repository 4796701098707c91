"""GPT-2, the smallest (Radford et al., 2019): one step over 128 tokens, from transformers."""

import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

TOKENS = 128

INPUTS = {"input_ids": ("INT64", (TOKENS,))}
OUTPUTS = {"logits": ("FP32", (50257,))}


class NextToken(nn.Module):
    """Token ids to scores of the token that comes after the last."""

    def __init__(self) -> None:
        super().__init__()
        self.gpt2 = GPT2LMHeadModel(GPT2Config(use_cache=False))

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.gpt2(input_ids, logits_to_keep=1).logits[:, -1]


def create_model() -> nn.Module:
    """124 439 808 parameters, random; the head's are the embedding's."""
    torch.manual_seed(2019)
    return NextToken()
