"""The simulated engine: the HTTP face, the metric names and the manners of vLLM 0.32, without a model behind it.

`python -m localcloud.engine serve DIR --served-model-name NAME --host ADDRESS --port 8000 …`. Every answer
says that it is simulated (headers `Server` and `X-Simulated-Engine`, the version, `system_fingerprint`).
"""
