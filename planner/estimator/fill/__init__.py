"""The fill of a template (section 5.3 of the paper): layers, micro-batch, variants of stages."""
