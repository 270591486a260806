"""The paper's evaluation, regenerated: plans stored by cell, and pages drawn from them."""
