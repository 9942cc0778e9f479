from kairos.workflows.compile.signatures import of_call, of_request, of_structure


def test_the_order_of_a_functions_arguments_does_not_count_and_all_else_does():
    one = of_call("f", "1", {"a": 1, "b": {"x": 1, "y": 2}})
    assert one == of_call("f", "1", {"b": {"y": 2, "x": 1}, "a": 1})
    others = [("g", "1", {"a": 1}), ("f", "2", {"a": 1}), ("f", "1", {"a": "1"}), ("f", "1", {})]
    assert len({of_call("f", "1", {"a": 1}), *(of_call(*other) for other in others)}) == 5


def test_a_request_counts_as_it_is_sent():
    body = {"messages": [{"role": "user", "content": "a"}], "temperature": 0.0}
    one = of_request("m", "1", body)
    assert one == of_request("m", "1", dict(body))
    assert one != of_request("m", "2", body)
    assert one != of_request(None, "1", body)
    assert one != of_request("m", "1", {**body, "seed": 1})
    # Engines ask for a schema's properties in its own order.
    assert of_request("m", "1", {"s": {"a": 1, "b": 2}}) != of_request(
        "m", "1", {"s": {"b": 2, "a": 1}}
    )


def test_what_is_hashed_says_what_it_is():
    assert of_structure(["f", "1", {}]) != of_call("f", "1", {})
    assert len(of_call("f", "1", {})) == 32
