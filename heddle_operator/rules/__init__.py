"""The rules of deciding: which nodes count, which plan pays, who may leave."""
