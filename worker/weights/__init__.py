"""What leaves the memory of the ranks: the final weights of a job."""
