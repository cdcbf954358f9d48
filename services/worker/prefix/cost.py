"""KV in host memory: is it fetched, or computed again? The cost model of DeepServe's populate (4.1). Pure."""


def fetch_pays(fetch_rate: float | None, prefill_rate: float | None) -> bool:
    """Whether a token's KV is here sooner by a copy than by computing it, both in tokens/s as measured. A rate that is
    not known yet speaks for the copy: it is slower on no machine that has been seen."""
    return fetch_rate is None or prefill_rate is None or fetch_rate > prefill_rate
