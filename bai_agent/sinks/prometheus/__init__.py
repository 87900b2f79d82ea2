"""The sink that keeps the last value of each metric where Prometheus takes it from."""
