"""Prefix caching and speculative decoding: whether vLLM supports them for a model, and the arguments for vLLM.

Support is what vLLM 0.32 decides itself (`ModelConfig.is_prefix_caching_supported`), and what its `SpeculativeConfig`
accepts without a second model.
"""

import json
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from serving.sizing.model import Attention, LatentAttention, ModelShape, StateLayer

NGRAM_TOKENS: Final = 4
NGRAM_LONGEST: Final = 5
"""vLLM's default length of the n-grams that it looks up in the prompt."""


class Drafter(StrEnum):
    """The source of draft tokens, which the model then checks."""

    MTP = "mtp"
    """The model's own draft layers (multi-token prediction)."""
    NGRAM = "ngram"
    """The prompt: the tokens that followed an earlier occurrence of the last tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixCaching:
    """Whether vLLM computes common prompt prefixes only once."""

    on: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """How tokens can be drafted."""

    method: Drafter | None
    """None: no known method."""
    tokens: int
    """Draft tokens per step."""
    reason: str

    def config(self) -> str | None:
        """Return the value of `--speculative-config`; None without a method."""
        if self.method is None:
            return None
        config: dict[str, str | int] = {"method": self.method.value, "num_speculative_tokens": self.tokens}
        if self.method is Drafter.NGRAM:
            config["prompt_lookup_max"] = NGRAM_LONGEST
        return json.dumps(config, separators=(",", ":"))


def prefix_caching(model: ModelShape) -> PrefixCaching:
    """Return vLLM's default for this model: no argument is needed."""
    if model.has_no_cache:
        return PrefixCaching(on=False, reason="an encoder stores nothing that could be reused")
    if all(isinstance(layer, StateLayer) for layer in model.layers):
        return PrefixCaching(on=False, reason="vLLM does not cache prefixes of models that have only state layers")
    return PrefixCaching(on=True, reason="vLLM's default for this model: equal prompt prefixes are computed once")


def speculation(model: ModelShape) -> Speculation:
    """Return the best method without a second model."""
    if model.has_no_cache:
        return Speculation(method=None, tokens=0, reason="the model generates no tokens")
    if model.draft_layers:
        reason = f"the checkpoint contains {model.draft_layers} layer(s) for drafts"
        return Speculation(method=Drafter.MTP, tokens=model.draft_layers, reason=reason)
    if any(isinstance(layer, StateLayer) for layer in model.layers):
        return Speculation(
            method=None, tokens=0, reason="the state of this model cannot be reset after rejected drafts"
        )
    reason = "by n-grams of the prompt; it helps where answers repeat their prompts (code, summaries)"
    return Speculation(method=Drafter.NGRAM, tokens=NGRAM_TOKENS, reason=reason)


def ngram_config() -> str:
    """Return the value of `--speculative-config` for n-grams of the prompt."""
    return str(Speculation(method=Drafter.NGRAM, tokens=NGRAM_TOKENS, reason="").config())


def drafting(model: ModelShape) -> ModelShape:
    """Return the model with its draft layers: each needs as much cache as the model's last attention layer."""
    if speculation(model).method is not Drafter.MTP:
        return model
    kept = [layer for layer in model.layers if isinstance(layer, Attention | LatentAttention)]
    return replace(model, layers=(*model.layers, *kept[-1:] * model.draft_layers))
