"""The cluster behind its seam: the client of the API server, its store, the lease.

Only `client` knows the kubernetes package.
"""
