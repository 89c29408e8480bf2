"""The part of vLLM's package that SGLang imports on a machine without a GPU."""
