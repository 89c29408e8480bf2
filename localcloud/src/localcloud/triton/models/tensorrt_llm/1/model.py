"""A model that generates tokens at a given speed. It returns from `execute` at once, as the Python backend of
TensorRT-LLM (`llmapi`) does, and sends the tokens from threads.
"""

# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import os
import threading
import time
from typing import Any

import numpy
import triton_python_backend_utils as backend

CAPACITY = 4
TOKEN_S = float(os.environ.get("GPUFLEET_SIM_TOKEN_MS", "15")) / 1000


class TritonPythonModel:
    """The class that the server looks for."""

    def initialize(self, _arguments: dict[str, str]) -> None:
        """Called once."""
        self._slots = threading.Semaphore(CAPACITY)

    def execute(self, requests: list[Any]) -> None:
        """Start a thread for each request."""
        for request in requests:
            count: Any = backend.get_input_tensor_by_name(request, "max_tokens").as_numpy().flat[0]
            # the sender must exist before this function returns
            work = (request.get_response_sender(), int(count))
            threading.Thread(target=self._generate, args=work, daemon=True).start()

    def _generate(self, sender: Any, count: int) -> None:
        with self._slots:
            for number in range(count):
                time.sleep(TOKEN_S)
                if sender.is_cancelled():
                    break
                token = numpy.array([f"t{number} ".encode()], dtype=object)
                sender.send(backend.InferenceResponse([backend.Tensor("token", token)]))
        sender.send(flags=backend.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
