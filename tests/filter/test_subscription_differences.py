from pyromq.filter.subscription_differences import POP, differences, in_words


def test_members_that_want_the_same_do_not_differ():
    assert differences({"one": {"orders": "*"}, "two": {"orders": "*"}}) == {}


def test_each_topic_tells_who_wants_what():
    found = differences({"b": {"orders": "x", "more": "*"}, "a": {"orders": "x"}, "c": {"orders": "y", "more": "*"}})
    assert found == {"more": {"*": ["b", "c"], "": ["a"]}, "orders": {"x": ["a", "b"], "y": ["c"]}}
    assert in_words(found) == 'more: nothing by a; "*" by b, c | orders: "x" by a, b; "y" by c'


def test_members_without_subscriptions_and_retry_topics_do_not_count():
    assert differences({"one": {"orders": "*", "%RETRY%g": "*"}, "two": {"orders": "*"}, "three": {}}) == {}


def test_of_many_members_some_are_named():
    found = differences({f"m{n:02}": {"orders": "*" if n else "a"} for n in range(13)})
    assert in_words(found).endswith('"*" by m01, m02, m03, m04, m05, m06, m07, m08, m09, m10 and 2 more; "a" by m00')


def test_members_of_a_group_that_pops_may_have_topics_of_their_own():
    assert differences({"m1": {"orders": "*"}, "m2": {"prices": "*"}}, POP) == {}
    assert differences({"m1": {"orders": "a"}, "m2": {"orders": "b"}, "m3": {"prices": "*"}}, POP) == {
        "orders": {"a": ["m1"], "b": ["m2"]}
    }
