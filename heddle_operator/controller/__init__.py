"""The loop that observes, decides and applies, one task for each job.

Only `watches` knows Kopf.
"""
