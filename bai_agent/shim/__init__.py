"""The shim: the small process that is the benchmark's parent. It uses the standard library only."""
