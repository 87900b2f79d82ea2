"""The events of the service: reads and checks requests and EC2's events, and writes messages. No I/O."""
