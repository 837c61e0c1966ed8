"""What is known of the consumers' fused mixture-of-experts kernels: how each is specialised and which configurations
its users tune over, the installed package, its files run alone, and the facts captured from it, live or shipped.
"""

EXPORTS = {
    "absent_imports": ("function_in", "run_file"),
    "installed_consumer": ("find_consumer", "InstalledConsumer", "require_tested", "version_in"),
    "moe_kernels": ("MoeKernel", "MoeTile", "SGLANG", "VLLM"),
    "moe_schemes": ("MoeScheme", "scheme_named"),
    "shipped_facts": ("TileFacts",),
    "tile_facts": ("kernel_source", "KernelSource"),
    "tuning_space": ("groups_by_preference", "MoeConfig", "STAGES", "TOKENS"),
}
