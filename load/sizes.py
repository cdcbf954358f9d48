"""The sizes in which checkpoints are made; see `model_shapes.SHAPES` for what each means."""

from typing import Literal

Size = Literal["tiny", "small", "medium", "large", "light-kv"]
# int4: groups of up to 128 inputs as compressed-tensors packs them; int8: its scale for each output; fp8: scales of
# square blocks as those of DeepSeek and Qwen3; mxfp4: of the experts of gpt-oss.
Quantized = Literal["int4", "int8", "fp8", "mxfp4"]
