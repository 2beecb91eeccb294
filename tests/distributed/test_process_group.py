def test_operations_with_unequal_and_no_rows(job):
    """MP-08: the mean of [2, 4, 6] and [10] is 5.5, not 7. A rank with nothing adds nothing and does not hang."""
    for found in job("operations"):
        assert found == {
            "mean": 5.5,
            "ragged": [[], [[0, 1, 2]]],
            "nothing": [[0, 2], [0, 2]],
            "objects": [{"rank": 0}, {"rank": 1}],
            "first": 7,
        }
