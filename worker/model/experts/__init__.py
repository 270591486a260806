"""Mixtures of experts: the choice of experts, the way of the tokens, the products."""
