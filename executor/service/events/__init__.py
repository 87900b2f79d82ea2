"""The events of the service: reads and checks requests and EC2's events, and writes messages. The modules do
no I/O."""
