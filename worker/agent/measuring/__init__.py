"""What an agent writes of each step into the output folder of a job."""
