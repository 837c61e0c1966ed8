"""What is known of kernels that are not ours: their configurations as predicted, and the times that autotuners and
``warpplan tune --measure`` took."""

EXPORTS = {
    "kernel_answer_store": (
        "KernelAnswer",
        "KernelAnswers",
    ),
    "launch_key_store": ("key_text", "LaunchKey"),
    "tuning_store": (
        "TunedTime",
        "Tunings",
    ),
}
