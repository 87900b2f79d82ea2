"""The connection to the benchmark service by Kafka: takes requests for jobs, launches the jobs on EC2, and
sends answers. `service.py` connects the parts."""
