"""`bai serve`, which connects bai to the benchmark service by Kafka: it takes requests for jobs, launches the
jobs on EC2, and sends answers. `service.py` connects the modules of this package."""
