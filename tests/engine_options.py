"""A vLLM server of which everything is chosen that can be."""

from serving.engine import VllmOptions

EVERYTHING = VllmOptions(
    max_model_len=4096,
    tensor_parallel_size=4,
    pipeline_parallel_size=2,
    data_parallel_size=2,
    gpu_memory_utilization=0.9,
    max_num_seqs=64,
    max_num_batched_tokens=8192,
    kv_cache_dtype="fp8",
    quantization="fp8",
    dtype="half",
    block_size=32,
    kv_cache_memory_bytes=1 << 30,
    enable_prefix_caching=False,
    enable_expert_parallel=True,
    speculative_config='{"method": "ngram", "num_speculative_tokens": 3}',
    max_num_queued_reqs=100,
    safetensors_load_strategy="prefetch",
    enforce_eager=True,
)
