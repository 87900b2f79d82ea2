"""Where records go: Kafka and the job store, one room each."""
