"""Texts are turned to tokens and back."""

from tests.gateway.conftest import ServedGateway


async def test_tokenize_and_detokenize_are_inverse(served: ServedGateway) -> None:
    text = "語 one 🙂 <|im_start|>two"
    status, body = await served.post("/tokenize", {"model": "tiny", "prompt": text})
    assert (status, body["max_model_len"], body["count"]) == (200, 256, len(body["tokens"]))
    assert (await served.post("/detokenize", {"model": "tiny", "tokens": body["tokens"]}))[1] == {"prompt": text}
    chat = {"messages": [{"role": "user", "content": "hi"}]}  # of the only model
    status, body = await served.post("/tokenize", chat)
    prompt = served.tokenizer.decode(body["tokens"], skip_special_tokens=False)
    assert prompt == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert (await served.post("/detokenize", {"tokens": body["tokens"]}))[1] == {"prompt": prompt}
