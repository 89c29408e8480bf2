"""From a model's configuration and headers to what it needs of a GPU. Formulas are vLLM 0.32's."""
