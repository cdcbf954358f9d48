from typing import Any

import pytest
import transformers

from livescale.shared.messages.parameters import Family
from livescale.shared.model.checkpoint import load_model_config
from tests.checkpoints import FAMILIES, tiny_checkpoint


@pytest.mark.parametrize("family", FAMILIES)
def test_the_tokenizer_gives_back_any_text_and_fills_the_vocabulary(family: Family) -> None:
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(tiny_checkpoint(family))
    text = "Any text: naïve 語 🙂 \t\n x=1; <tags>"
    ids = tokenizer(text, add_special_tokens=False).input_ids
    assert tokenizer.decode(ids) == text
    assert len(tokenizer) == load_model_config(tiny_checkpoint(family)).vocab_size


@pytest.mark.parametrize(
    ("family", "rendered"),
    [
        (
            "llama",
            "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n",
        ),
        ("qwen2", "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"),
    ],
)
def test_the_chat_template_speaks_as_the_family_does(family: Family, rendered: str) -> None:
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(tiny_checkpoint(family))
    messages = [{"role": "user", "content": "Hi"}]
    assert tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == rendered
