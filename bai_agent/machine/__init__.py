"""Facts about the benchmark's machine: hardware, software, GPUs, throttling, usage, co-located jobs."""
