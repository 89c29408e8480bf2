"""Parts of the OpenAI API's responses."""

from typing import Any

from localcloud.engine.batch import CompletionRequest, Finish


def usage(request: CompletionRequest) -> dict[str, Any]:
    """The tokens of a response."""
    prompt = len(request.pieces)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": request.made,
        "total_tokens": prompt + request.made,
        "prompt_tokens_details": {"cached_tokens": request.cached},
    }


def delta(content: dict[str, str], finish: Finish | None = None) -> dict[str, Any]:
    """A part of a chat stream."""
    return {"index": 0, "delta": content, "logprobs": None, "finish_reason": finish}


def part(text: str, finish: Finish | None = None) -> dict[str, Any]:
    """A part of a text stream."""
    return {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
