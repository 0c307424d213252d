"""`dynamicgate generate`."""

from __future__ import annotations

import codecs
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import arg

if TYPE_CHECKING:
    from dynamicgate.lab.language.generation import Token


@dataclass(frozen=True)
class Generate:
    """Continue a text with a saved language model, and say what its tokens cost.

    For example:
      dynamicgate generate --model gpt.safetensors --prompt "It was a dark night"

    Text is written as it is made. The lines after it compare the executed MACs of a token with those of the same model
    without gates.
    """

    model: Annotated[Path, arg(metavar="FILE")]
    """A language model: one safetensors file, such as `python -m experiments.language save` writes."""
    prompt: Annotated[str, arg(metavar="TEXT")]
    """The text to continue."""
    tokens: int = 200
    """How many tokens to add."""
    temperature: float = 0.8
    """How varied the text is; 0 takes the most likely token each time."""
    top_p: float = 0.95
    """Draw only from the most likely tokens that together have this probability."""
    seed: int = 0
    """Another seed gives another text."""
    costs: bool = False
    """Write a line for each token instead of running text: its cost as a fraction of dense, and the token."""
    device: str = "auto"
    """auto, cpu or cuda."""

    def run(self) -> int:
        """Write the text, then what it cost."""
        from dynamicgate.distributed import choose_device
        from dynamicgate.lab.language.generation import generate
        from dynamicgate.lab.language.model_file import load_gpt

        model, tokenizer, _ = load_gpt(self.model)
        model.to(choose_device(self.device))
        prompt = tokenizer.encode(self.prompt.encode()).tolist()
        made: list[Token] = []
        decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a character may be several tokens long
        if not self.costs:
            print(self.prompt, end="", flush=True)
        started = time.monotonic()
        options = {"temperature": self.temperature, "top_p": self.top_p, "seed": self.seed}
        for token in generate(model, prompt, self.tokens, **options):  # type: ignore[arg-type]
            made.append(token)
            text = tokenizer.decode([token.number])
            if self.costs:
                print(f"{token.macs / token.dense:.3f}  {text.decode('utf-8', 'replace')!r}", flush=True)
            else:
                print(decoder.decode(text), end="", flush=True)
        seconds = time.monotonic() - started
        print(f"\n\n{describe_costs(made)}; {len(made) / seconds:.0f} tokens a second here", file=sys.stderr)
        return 0


def describe_costs(made: list[Token]) -> str:
    """One line: what the tokens cost, and how much the cheapest and the dearest."""
    later = made[1:] or made  # the first one includes the whole prompt
    macs, dense = (sum(getattr(token, name) for token in later) / len(later) for name in ("macs", "dense"))
    fractions = [token.macs / token.dense for token in later]
    spread = f"from {min(fractions):.3f} to {max(fractions):.3f}"
    return f"{len(made)} tokens, {macs / 1e6:.2f} M MACs each: {macs / dense:.3f} of dense, {spread}"
