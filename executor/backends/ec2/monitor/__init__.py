"""How a job on EC2 stands, and what is done about machines that nobody needs."""
