"""Real SGLang on this machine's CPU, in the place of a GPU instance's container (`image: gpu-fleet/sglang-cpu`)."""
