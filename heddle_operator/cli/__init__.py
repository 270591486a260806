"""The `heddle` command and the parts of it that speak to a cluster."""
