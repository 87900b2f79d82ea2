"""The Kafka side: takes jobs from the benchmark service, launches them on EC2 and answers. `service.py` puts
it together."""
