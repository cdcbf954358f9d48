from livescale.load.bench.roles.loads import CONTEXT, GAPS, MOST_LOAD, mixed_load, roles_loads


def test_all_requests_fit_and_have_indices_of_their_own() -> None:
    asks = list(roles_loads())
    assert len({ask.index for ask in asks}) == len(asks)
    assert max(len(ask.prompt) + ask.max_tokens for ask in asks) <= CONTEXT


def test_prompts_whose_kv_stays_and_prompts_whose_kv_leaves_are_the_same() -> None:
    loads = roles_loads()
    assert [ask.prompt for ask in loads.unsent] == [ask.prompt for ask in loads.sent]
    assert {ask.max_tokens for ask in loads.unsent} == {1}  # nothing is left to hand over
    assert {ask.max_tokens for ask in loads.sent} == {2}


def test_a_mixed_load_has_gaps_enough_and_is_the_same_every_time() -> None:
    asks = roles_loads().mixed
    assert sum(ask.max_tokens - 1 for ask in asks) >= GAPS
    due, faster = mixed_load(asks, 1000.0), mixed_load(asks, 2000.0)
    assert due == mixed_load(roles_loads().mixed, 1000.0)
    assert [ask.at for ask in due] == [2 * ask.at for ask in faster]
    # Random times keep to the mean only roughly.
    mean = due[-1].at / (len(due) - 1)
    assert 0.6 < mean * MOST_LOAD * 1000 / len(asks[0].prompt) < 1.6
