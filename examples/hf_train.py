"""A Hugging Face language model with gates, in your own training loop: train, save, load, generate, cost per token.

A tiny Llama learns to continue sequences that count up in steps of 1 to 4. Nothing is downloaded. Needs the extra `hf`.
"""

import tempfile
from pathlib import Path

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

import dynamicgate as dg
import dynamicgate.hf

VOCAB, LENGTH = 64, 24


def counting(rows: int, generator: torch.Generator) -> Tensor:
    """Each row starts anywhere and goes up by a step of its own."""
    start, step = (
        torch.randint(VOCAB, (rows, 1), generator=generator),
        torch.randint(1, 5, (rows, 1), generator=generator),
    )
    return (start + step * torch.arange(LENGTH)) % VOCAB


torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=VOCAB, hidden_size=64, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
    max_position_embeddings=64, bos_token_id=None, eos_token_id=None,
)  # fmt: skip
model = LlamaForCausalLM(config)
generator = torch.Generator().manual_seed(1)

dg.gate_(model, dg.GateConfig(block=16, net="linear"), where="mlp")  # on both feed-forward layers
budget = dg.Budget(target=0.6)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
steps = 120
for step in range(steps):
    ids, progress = counting(32, generator), step / steps
    budget.apply_(model, progress)  # before the forward pass, set tau and theta of the gates
    with dg.usage(model) as used:  # record what the gates decide
        loss = model(input_ids=ids, labels=ids).loss
    (loss + budget.step(used, progress)).backward()  # add the penalty for what was open
    optimizer.step()
    optimizer.zero_grad()
    if step % 40 == 0 or step == steps - 1:
        print(f"{progress:4.0%}  loss {loss.item():.3f}  MACs {budget.relative:.3f} of dense")

model.eval()
budget.calibrate_(model, [{"input_ids": counting(64, generator)}])  # shift the gates onto the budget

with tempfile.TemporaryDirectory() as folder:
    model.save_pretrained(Path(folder) / "gated")  # gates inside
    loaded = LlamaForCausalLM.from_pretrained(Path(folder) / "gated")
ids = counting(4, generator)
assert torch.equal(model(input_ids=ids).logits, loaded(input_ids=ids).logits)

prompt, truth = ids[:, :12], ids[:, 12:]
written = loaded.generate(prompt, max_new_tokens=12, do_sample=False)[:, 12:]
print(f"\n{(written == truth).float().mean():.0%} of the generated numbers are right, for example")
print(" ", *prompt[0].tolist(), "->", *written[0].tolist())

test = counting(64, generator)
counter = dg.count_macs(loaded, {"input_ids": test[:8]})
with dg.usage(loaded) as used, torch.no_grad():
    loaded(input_ids=test)
executed = float(counter.executed({site: used[site].open for site in used}))
print(f"\nMACs per token: {executed / LENGTH:,.0f} of {counter.dense / LENGTH:,.0f} ({executed / counter.dense:.3f})")
for site, rate in used.mean_open().items():
    print(f"  {site}: {float(rate):.0%} of the blocks open")
