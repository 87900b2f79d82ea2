"""The shim: the small process that is the benchmark's parent. The shim uses the standard library only."""
