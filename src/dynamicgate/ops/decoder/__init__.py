"""A whole language model on the CPU in one call: norms, rotary positions, attention with a cache, gated feed-forward
layers and the head. Every linear map is a chain (`ops.chain`), so that closed blocks are skipped."""

from dynamicgate.ops.decoder.layers import Block, Decoder, Norm
from dynamicgate.ops.decoder.packing import PackedDecoder, check_decoder, pack_decoder
from dynamicgate.ops.decoder.reference import reference_decoder
from dynamicgate.ops.decoder.running import PARTS, new_cache, run_decoder

__all__ = [
    "PARTS",
    "Block",
    "Decoder",
    "Norm",
    "PackedDecoder",
    "check_decoder",
    "new_cache",
    "pack_decoder",
    "reference_decoder",
    "run_decoder",
]
