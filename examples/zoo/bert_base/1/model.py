"""BERT-base (Devlin et al., NAACL 2019) for 128 tokens, from transformers' own description."""

import torch
from torch import nn
from transformers import BertConfig, BertModel

TOKENS = 128

INPUTS = {"input_ids": ("INT64", (TOKENS,)), "attention_mask": ("INT64", (TOKENS,))}
OUTPUTS = {"pooled": ("FP32", (768,))}


class Sentence(nn.Module):
    """Token ids to one vector a row."""

    def __init__(self) -> None:
        super().__init__()
        self.bert = BertModel(BertConfig())

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.bert(input_ids, attention_mask).pooler_output


def create_model() -> nn.Module:
    """109 482 240 parameters, random."""
    torch.manual_seed(12)
    return Sentence()
