"""What is computed once and stored beside the plans: capabilities, the sweep, search efficiency."""
