"""What was observed, what is to be done, and the records that outlive the operator: frozen data."""
