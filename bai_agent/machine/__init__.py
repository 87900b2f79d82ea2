"""Facts of the machine: hardware, software, GPUs, throttling, usage, co-located jobs."""
