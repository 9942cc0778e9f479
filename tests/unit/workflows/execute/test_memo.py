from kairos.workflows.execute.flights import ResultMemo


def test_the_least_recently_used_is_forgotten_first():
    memo = ResultMemo(3 * 300)
    for name in "abc":
        memo.put(name, "x" * 100)
    assert memo.get("a") == ("x" * 100,)
    memo.put("d", "x" * 100)
    assert memo.get("b") is None
    assert [memo.get(name) is not None for name in "acd"] == [True] * 3
    assert len(memo) == 3


def test_what_is_larger_than_all_of_it_is_not_kept_and_takes_nobodys_place():
    memo = ResultMemo(1_000)
    memo.put("a", None)
    memo.put("b", ["x" * 2_000])
    assert memo.get("a") == (None,)
    assert memo.get("b") is None


def test_the_first_result_stays():
    memo = ResultMemo(1_000)
    memo.put("a", 1)
    memo.put("a", 2)
    assert memo.get("a") == (1,)
