"""The final weights of a job, on their way out of the ranks' memory."""
