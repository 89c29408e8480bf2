"""Real Triton Inference Server on this machine's CPU, with a model that generates tokens at a given speed."""
