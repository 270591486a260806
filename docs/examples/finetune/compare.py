"""Load what the jobs left with `transformers` and say how well each model knows English."""

import sys

import torch
from transformers import AutoModelForCausalLM

TEXT = "The statement is executed only if the expression is true; otherwise nothing happens."

tokens = torch.tensor([list(TEXT.encode())])
for folder in sys.argv[1:]:
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        loss = model(input_ids=tokens, labels=tokens).loss.item()
    sys.stdout.write(f"{folder}: loss {loss:.3f} on a sentence that neither has seen\n")
