"""Passes its input on: a part of an ensemble."""

# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from typing import Any

import triton_python_backend_utils as backend


class TritonPythonModel:
    """The class that the server looks for."""

    def execute(self, requests: list[Any]) -> list[Any]:
        """Return the responses."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        value = backend.get_input_tensor_by_name(request, "prompt").as_numpy()
        return backend.InferenceResponse([backend.Tensor("max_tokens", value)])
