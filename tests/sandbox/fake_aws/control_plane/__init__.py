"""AWS's APIs on 127.0.0.1: moto, and around it what it lacks and what a test lets go wrong."""
