"""Prefix caching and speculative decoding: whether vLLM can do them with a model, and what it is told.

What can be done is what vLLM 0.32 decides by itself (`ModelConfig.is_prefix_caching_supported`) and what its
`SpeculativeConfig` takes without a second model.
"""

import json
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from serving.sizing.model import Attention, LatentAttention, ModelShape, StateLayer

NGRAM_TOKENS: Final = 4
NGRAM_LONGEST: Final = 5
"""vLLM's own length of the n-grams that are looked up in the prompt."""


class Drafter(StrEnum):
    """Who writes ahead what the model then checks."""

    MTP = "mtp"
    """The model's own layers for that (multi-token prediction)."""
    NGRAM = "ngram"
    """The prompt: what followed the last words when they stood there before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixCaching:
    """Whether equal beginnings of prompts are computed once."""

    on: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """How tokens can be drafted ahead."""

    method: Drafter | None
    """None: in no way that is known here."""
    tokens: int
    """Drafted for each step."""
    reason: str

    def config(self) -> str | None:
        """The value of `--speculative-config`; None: there is no way."""
        if self.method is None:
            return None
        said: dict[str, str | int] = {"method": self.method.value, "num_speculative_tokens": self.tokens}
        if self.method is Drafter.NGRAM:
            said["prompt_lookup_max"] = NGRAM_LONGEST
        return json.dumps(said, separators=(",", ":"))


def prefix_caching(model: ModelShape) -> PrefixCaching:
    """As vLLM does by itself: no argument is needed."""
    if model.keeps_nothing:
        return PrefixCaching(on=False, reason="an encoder keeps nothing that could be used again")
    if all(isinstance(layer, StateLayer) for layer in model.layers):
        return PrefixCaching(on=False, reason="vLLM does not cache prefixes of models that keep a state alone")
    return PrefixCaching(on=True, reason="vLLM's default for it: equal beginnings of prompts are computed once")


def speculation(model: ModelShape) -> Speculation:
    """The best way that needs no second model."""
    if model.keeps_nothing:
        return Speculation(method=None, tokens=0, reason="it writes no tokens")
    if model.draft_layers:
        reason = f"the checkpoint brings {model.draft_layers} layer(s) of its own for it"
        return Speculation(method=Drafter.MTP, tokens=model.draft_layers, reason=reason)
    if any(isinstance(layer, StateLayer) for layer in model.layers):
        return Speculation(
            method=None, tokens=0, reason="a state that has gone on over wrong drafts is not known here"
        )
    reason = "by n-grams of the prompt; it helps where answers repeat their prompts (code, summaries)"
    return Speculation(method=Drafter.NGRAM, tokens=NGRAM_TOKENS, reason=reason)


def drafting(model: ModelShape) -> ModelShape:
    """The model as it is when it drafts for itself: its draft layers keep what its last attention layer keeps."""
    if speculation(model).method is not Drafter.MTP:
        return model
    kept = [layer for layer in model.layers if isinstance(layer, Attention | LatentAttention)]
    return replace(model, layers=(*model.layers, *kept[-1:] * model.draft_layers))
